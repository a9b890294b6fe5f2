// A list of descriptors to write or read, and the notification that follows it.
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

    // Starts the transfer from the beginning. A list without bytes ends with the first `post`. Not while it is in progress.
    void start(std::optional<std::string> notification);
    // Posts requests. Returns whether all are posted. Throws a Failure if the connection has
    // failed.
    bool post(polyrail_peers *peers, uint64_t peer);
    // Cancels the requests and the notification that are not posted. Posted requests end normally, or are taken back: see
    // `take_back`. A notification that is partly posted is left to the outbox, and the transfer does not wait for it.
    void cancel();
    // Asks for the posted requests back. They end once no device can access their memory for them any more.
    void take_back(polyrail_peers *peers, uint64_t peer) const;
    // Fails the transfer after its connection has ended for this reason. A refusal of the peer's device is named only if
    // the peer has not left.
    void lost(const Failure &end, bool has_peer_left);

    // Sets the outbox that sends the notification when all data has arrived.
    void notify_by(Outbox *box) { outbox = box; }
    // Returns NIXL_IN_PROG while the transfer is in progress. May be called by any thread.
    nixl_status_t status() const { return state.load(std::memory_order_acquire); }
    // Returns whether no request is posted.
    bool is_quiet() const { return unreported == 0; }
    // Returns whether the peer's device refused a request.
    bool is_refused() const { return was_refused; }
    // Returns why the transfer failed; empty if it did not.
    const std::string &words() const { return why; }
    const std::string &agent() const { return whom; }
    uint64_t bytes() const { return total; }

    void reported(const polyrail_completion &completion) override;
    void notified() override;

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
    // The first failure.
    nixl_status_t failure = NIXL_SUCCESS;
    // A request failed. Its connection ends, and the reason for that decides what the failure is called.
    bool awaits_end = false;
    bool was_refused = false;
    std::string why;
    Outbox *outbox = nullptr;
    std::atomic<nixl_status_t> state{NIXL_ERR_NOT_POSTED};
};
