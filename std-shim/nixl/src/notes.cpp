#include "notes.h"

namespace {

constexpr char TAKEN[] = "taken ";
constexpr char ENDED[] = "ended ";
constexpr size_t MARK_BYTES = sizeof TAKEN - 1;
constexpr size_t MAX_DIGITS = 19;

bool is_number(const std::string &text) {
    return !text.empty() && text.size() <= MAX_DIGITS && text.find_first_not_of("0123456789") == std::string::npos;
}

} // namespace

std::string Note::encode() const {
    const std::string text = kind == Kind::Taken ? TAKEN + std::to_string(total) : ENDED + words;
    return text.substr(0, POLYRAIL_MESSAGE_BYTES);
}

Note Note::decode(const std::string &text) {
    const std::string rest = text.size() < MARK_BYTES ? "" : text.substr(MARK_BYTES);
    if (text.compare(0, MARK_BYTES, TAKEN) == 0 && is_number(rest)) {
        return taken(std::stoull(rest));
    }
    if (text.compare(0, MARK_BYTES, ENDED) == 0) {
        return ended(rest);
    }
    throw Failure(NIXL_ERR_MISMATCH, "\"" + text.substr(0, 100) + "\" is not a note of this plugin");
}

bool Note::send(polyrail_peers *peers, uint64_t peer) const {
    const std::string text = encode();
    return polyrail_peers_say(peers, peer, text.data(), text.size()) == POLYRAIL_CODE_OK;
}
