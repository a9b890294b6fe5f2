#include "library.h"

nixl_status_t status_of(int32_t code) {
    switch (code) {
    case POLYRAIL_CODE_OK:
        return NIXL_SUCCESS;
    case POLYRAIL_CODE_NOT_NOW:
        return NIXL_IN_PROG;
    case POLYRAIL_CODE_NULL:
    case POLYRAIL_CODE_ARGUMENT:
    case POLYRAIL_CODE_RANGE:
        return NIXL_ERR_INVALID_PARAM;
    case POLYRAIL_CODE_ACCESS:
    case POLYRAIL_CODE_TOO_MANY:
        return NIXL_ERR_NOT_ALLOWED;
    case POLYRAIL_CODE_MISMATCH:
    case POLYRAIL_CODE_KEYS:
    case POLYRAIL_CODE_PROTOCOL:
        return NIXL_ERR_MISMATCH;
    case POLYRAIL_CODE_UNSUPPORTED:
        return NIXL_ERR_NOT_SUPPORTED;
    case POLYRAIL_CODE_NO_DEVICE:
    case POLYRAIL_CODE_HANDLE:
        return NIXL_ERR_NOT_FOUND;
    case POLYRAIL_CODE_FAILED:
    case POLYRAIL_CODE_PEER:
    case POLYRAIL_CODE_LINK:
        return NIXL_ERR_REMOTE_DISCONNECT;
    default:
        return NIXL_ERR_BACKEND;
    }
}

std::string message_of(int32_t code) {
    const std::string words = polyrail_last_error();
    return words.empty() ? polyrail_strerror(code) : words;
}

bool check(int32_t code, const char *what) {
    if (code < 0) {
        throw Failure(status_of(code), std::string(what) + ": " + message_of(code));
    }
    return code == POLYRAIL_CODE_OK;
}
