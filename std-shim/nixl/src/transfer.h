// A list of descriptors to be written or read, and the notification behind it.
#pragma once

#include "memory.h"
#include "outbox.h"

#include <atomic>
#include <optional>
#include <vector>

class Transfer final : public nixlBackendReqH, public Reported, public Notifier {
public:
    // Throws a Failure that says which descriptor is wrong.
    Transfer(nixl_xfer_op_t operation, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote,
             const std::string &agent);

    // From the beginning. Not while it is under way.
    void start(std::optional<std::string> notification);
    // Hands requests over; whether none is left. Throws a Failure if the connection has failed.
    bool post(polyrail_peers *peers, uint64_t peer);
    // Cancels what was not handed over; the rest ends as it does.
    void cancel();
    // The connection is gone, and reports nothing any more.
    void lost();

    // When all data is there, its notification goes here.
    void notify_by(Outbox *box) { outbox = box; }
    // NIXL_IN_PROG while it is under way; may be asked by any thread.
    nixl_status_t status() const { return state.load(std::memory_order_acquire); }
    // Whether nothing of it is posted.
    bool is_quiet() const { return unreported == 0; }
    // Why it failed; empty if it did not, or with its connection.
    const std::string &words() const { return why; }
    const std::string &agent() const { return whom; }
    uint64_t bytes() const { return total; }

    void reported(const polyrail_completion &completion) override;
    void notified(nixl_status_t status) override;

private:
    void add(const LocalMemory &local, uint64_t offset, const RemoteMemory &remote, uint64_t remote_offset,
             uint64_t length);
    void end(nixl_status_t status) { state.store(status, std::memory_order_release); }
    void settle();

    const std::string whom;
    const uint32_t opcode;
    uint64_t total = 0;
    std::vector<polyrail_request> requests;
    size_t next = 0;
    size_t unreported = 0;
    bool is_notifying = false;
    std::optional<std::string> notification;
    // The first one.
    nixl_status_t failure = NIXL_SUCCESS;
    std::string why;
    Outbox *outbox = nullptr;
    std::atomic<nixl_status_t> state{NIXL_ERR_NOT_POSTED};
};
