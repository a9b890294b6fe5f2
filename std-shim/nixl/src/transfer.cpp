#include "transfer.h"

#include <algorithm>

namespace {

// The length of a request has 32 bits, so longer descriptors become several requests.
constexpr uint64_t MAX_REQUEST_BYTES = 1 << 30;

// Whether the peer's device refused. The peer may have been about to leave, and have deregistered its memory first.
bool is_refusal(uint32_t status) {
    switch (status) {
    case POLYRAIL_STATUS_BAD_RESPONSE:
    case POLYRAIL_STATUS_REMOTE_INVALID:
    case POLYRAIL_STATUS_REMOTE_ACCESS:
    case POLYRAIL_STATUS_REMOTE_OPERATION:
        return true;
    default:
        return false;
    }
}

nixl_status_t meaning(uint32_t status) {
    switch (status) {
    case POLYRAIL_STATUS_FLUSHED:
    case POLYRAIL_STATUS_RETRIES_EXCEEDED:
    case POLYRAIL_STATUS_RECEIVER_NOT_READY:
    case POLYRAIL_STATUS_RESPONSE_TIMEOUT:
        return NIXL_ERR_REMOTE_DISCONNECT;
    default:
        return NIXL_ERR_BACKEND;
    }
}

std::string words_of(uint32_t status) {
    return std::string("a request ended: ") + polyrail_status_str(status) + " (status " + std::to_string(status) + ')';
}

} // namespace

Transfer::Transfer(nixl_xfer_op_t operation, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote,
                   const std::string &agent)
    : whom(agent), opcode(operation == NIXL_READ ? POLYRAIL_OPCODE_READ : POLYRAIL_OPCODE_WRITE) {
    if (local.size() == 0 || local.size() != remote.size()) {
        throw Failure(NIXL_ERR_INVALID_PARAM, std::to_string(local.size()) + " descriptors here, and " +
                                                  std::to_string(remote.size()) + " at " + agent);
    }
    requests.reserve(local.size());
    for (size_t index = 0; index < local.size(); ++index) {
        const nixlMetaDesc &here = local[index];
        const nixlMetaDesc &there = remote[index];
        const std::string which = "descriptor " + std::to_string(index) + ": ";
        const auto *mine = static_cast<const LocalMemory *>(here.metadataP);
        const auto *theirs = static_cast<const RemoteMemory *>(there.metadataP);
        if (mine == nullptr || theirs == nullptr) {
            throw Failure(NIXL_ERR_NOT_FOUND, which + "its memory is not registered");
        }
        if (theirs->agent != agent) {
            throw Failure(NIXL_ERR_MISMATCH,
                          which + "its memory belongs to agent " + theirs->agent + ", not to " + agent);
        }
        if (here.len != there.len) {
            throw Failure(NIXL_ERR_INVALID_PARAM, which + std::to_string(here.len) + " bytes here, and " +
                                                      std::to_string(there.len) + " at " + agent);
        }
        try {
            add(*mine, mine->offset_of(here), *theirs, theirs->offset_of(there), here.len);
        } catch (const Failure &failure) {
            throw Failure(failure.status, which + failure.what());
        }
    }
}

// Extends the previous request if the memory is contiguous at both ends.
void Transfer::add(const LocalMemory &local, uint64_t offset, const RemoteMemory &remote, uint64_t remote_offset,
                   uint64_t length) {
    total += length;
    while (length > 0) {
        polyrail_request *last = requests.empty() ? nullptr : &requests.back();
        const bool goes_on = last != nullptr && last->region == local.region() && last->remote == remote.remote() &&
                             last->offset + last->length == offset &&
                             last->remote_offset + last->length == remote_offset &&
                             last->length < MAX_REQUEST_BYTES;
        if (!goes_on) {
            polyrail_request request{};
            request.id = id();
            request.opcode = opcode;
            request.region = local.region();
            request.offset = offset;
            request.remote = remote.remote();
            request.remote_offset = remote_offset;
            requests.push_back(request);
            last = &requests.back();
        }
        const uint64_t part = std::min(length, MAX_REQUEST_BYTES - last->length);
        last->length += static_cast<uint32_t>(part);
        offset += part;
        remote_offset += part;
        length -= part;
    }
}

void Transfer::start(std::optional<std::string> message) {
    next = 0;
    failure = NIXL_SUCCESS;
    awaits_end = was_refused = false;
    why.clear();
    notification = std::move(message);
    end(NIXL_IN_PROG);
}

bool Transfer::post(polyrail_peers *peers, uint64_t peer) {
    if (next == requests.size()) {
        // Without a request, nothing else would end it.
        settle();
        return true;
    }
    size_t posted = 0;
    const polyrail_code code =
        polyrail_peers_post_many(peers, peer, &requests[next], requests.size() - next, &posted);
    next += posted;
    unreported += posted;
    try {
        check(code, "posting a transfer");
    } catch (const Failure &refusal) {
        if (refusal.status == NIXL_ERR_REMOTE_DISCONNECT) {
            throw;
        }
        // Only this transfer fails; its message is kept for later calls.
        failure = refusal.status;
        why = refusal.what();
        next = requests.size();
        settle();
    }
    return next == requests.size();
}

void Transfer::cancel() {
    next = requests.size();
    notification.reset();
    if (is_notifying) {
        is_notifying = false;
        outbox->withdraw(*this);
    }
    failure = NIXL_ERR_CANCELED;
    awaits_end = false;
    settle();
}

void Transfer::take_back(polyrail_peers *peers, uint64_t peer) const {
    // Without rerouting, and where all are done already, none is taken back: they end normally.
    size_t count = 0;
    polyrail_peers_cancel(peers, peer, id(), &count);
}

void Transfer::lost(const Failure &end, bool has_peer_left) {
    next = requests.size();
    unreported = 0;
    is_notifying = awaits_end = false;
    const bool is_known = failure != NIXL_SUCCESS && failure != NIXL_ERR_REMOTE_DISCONNECT;
    if (!is_known || (was_refused && has_peer_left)) {
        failure = end.status;
        why = end.what();
    } else if (failure != NIXL_ERR_CANCELED) {
        why += std::string("; ") + end.what();
    }
    settle();
}

void Transfer::reported(const polyrail_completion &completion) {
    unreported -= 1;
    if (completion.status != POLYRAIL_STATUS_SUCCESS && failure == NIXL_SUCCESS) {
        failure = meaning(completion.status);
        was_refused = is_refusal(completion.status);
        awaits_end = true;
        why = words_of(completion.status);
        next = requests.size();
    }
    settle();
}

void Transfer::notified() {
    is_notifying = false;
    settle();
}

void Transfer::settle() {
    if (status() != NIXL_IN_PROG || next < requests.size() || unreported > 0 || is_notifying || awaits_end) {
        return;
    }
    if (failure == NIXL_SUCCESS && notification.has_value()) {
        is_notifying = true;
        outbox->add(std::move(*notification), this);
        notification.reset();
    } else {
        end(failure);
    }
}
