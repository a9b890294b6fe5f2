// The part of NIXL's C++ interface that a backend plugin uses, declared from its public description because the
// wheel has no headers. The classes keep NIXL's own names and member order: the agent calls engines through their
// virtual table and reads their base class directly, so both are ABI. The table and the offsets below match the
// wheels nixl-cu12 1.2 to 1.5.1 on x86-64 (plugin API version 1, libstdc++ with the new std::string).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#if !defined(__GLIBCXX__) || !_GLIBCXX_USE_CXX11_ABI
#error "NIXL's wheels are made with libstdc++ and its C++11 ABI"
#endif

enum nixl_mem_t { DRAM_SEG, VRAM_SEG, BLK_SEG, OBJ_SEG, FILE_SEG };

enum nixl_xfer_op_t { NIXL_READ, NIXL_WRITE };

enum nixl_status_t {
    NIXL_IN_PROG = 1,
    NIXL_SUCCESS = 0,
    NIXL_ERR_NOT_POSTED = -1,
    NIXL_ERR_INVALID_PARAM = -2,
    NIXL_ERR_BACKEND = -3,
    NIXL_ERR_NOT_FOUND = -4,
    NIXL_ERR_MISMATCH = -5,
    NIXL_ERR_NOT_ALLOWED = -6,
    NIXL_ERR_REPOST_ACTIVE = -7,
    NIXL_ERR_UNKNOWN = -8,
    NIXL_ERR_NOT_SUPPORTED = -9,
    NIXL_ERR_REMOTE_DISCONNECT = -10,
    NIXL_ERR_CANCELED = -11,
};

enum class nixl_thread_sync_t { NIXL_THREAD_SYNC_NONE, NIXL_THREAD_SYNC_STRICT, NIXL_THREAD_SYNC_RW };

enum class nixl_cost_t { ANALYTICAL_BACKEND = 0 };

using nixl_backend_t = std::string;
using nixl_blob_t = std::string;
using nixl_mem_list_t = std::vector<nixl_mem_t>;
using nixl_b_params_t = std::unordered_map<std::string, std::string>;
using nixl_query_resp_t = std::optional<nixl_b_params_t>;
// Sender and text of each notification.
using notif_list_t = std::vector<std::pair<std::string, std::string>>;
using nixlMemViewH = void *;

class nixlSerDes;
struct nixlAgentOptionalArgs;

class nixlBasicDesc {
public:
    uintptr_t addr;
    size_t len;
    uint64_t devId;
};

class nixlBlobDesc : public nixlBasicDesc {
public:
    nixl_blob_t metaInfo;
};

// The engine's data about a region, of this agent or another. Made and deleted by the engine.
class nixlBackendMD {
public:
    explicit nixlBackendMD(bool is_private) : isPrivateMD(is_private) {}
    virtual ~nixlBackendMD() = default;

protected:
    bool isPrivateMD;
};

class nixlMetaDesc : public nixlBasicDesc {
public:
    nixlBackendMD *metadataP;
};

// Made by the agent, and only read here. The virtual functions are declared for the layout.
template <class T> class nixlDescList {
public:
    virtual ~nixlDescList() = default;
    virtual void resize(const size_t &count) = 0;
    virtual void addDesc(const T &desc) = 0;
    virtual int getIndex(const nixlBasicDesc &query) const = 0;

    size_t size() const { return descs.size(); }
    const T &operator[](size_t index) const { return descs[index]; }

protected:
    nixl_mem_t type;
    std::vector<T> descs;
};

struct nixlRemoteMetaDesc;
using nixl_meta_dlist_t = nixlDescList<nixlMetaDesc>;
using nixl_remote_meta_dlist_t = nixlDescList<nixlRemoteMetaDesc>;
using nixl_reg_dlist_t = nixlDescList<nixlBlobDesc>;

// A transfer that an engine prepared; made and deleted by the engine.
class nixlBackendReqH {
public:
    virtual ~nixlBackendReqH() = default;
};

struct nixlBackendOptionalArgs {
    nixl_blob_t notifMsg;
    bool hasNotif = false;
    nixl_blob_t customParam;
};
using nixl_opt_b_args_t = nixlBackendOptionalArgs;

class nixlBackendInitParams {
public:
    std::string localAgent;
    nixl_backend_t type;
    nixl_b_params_t *customParams;
    bool enableProgTh;
    uint64_t pthrDelay;
    nixl_thread_sync_t syncMode;
    bool enableTelemetry_;
};

class nixlBackendEngine {
public:
    explicit nixlBackendEngine(const nixlBackendInitParams *init)
        : backendType(init->type), customParams(*init->customParams), localAgent(init->localAgent),
          enableTelemetry_(init->enableTelemetry_) {}
    nixlBackendEngine(const nixlBackendEngine &) = delete;
    void operator=(const nixlBackendEngine &) = delete;
    virtual ~nixlBackendEngine() = default;

    bool getInitErr() const noexcept { return initErr; }

    virtual bool supportsRemote() const = 0;
    virtual bool supportsLocal() const = 0;
    virtual bool supportsNotif() const = 0;
    virtual nixl_mem_list_t getSupportedMems() const = 0;

    virtual nixl_status_t registerMem(const nixlBlobDesc &mem, const nixl_mem_t &type, nixlBackendMD *&out) = 0;
    virtual nixl_status_t deregisterMem(nixlBackendMD *meta) = 0;
    virtual nixl_status_t connect(const std::string &remote_agent) = 0;
    virtual nixl_status_t disconnect(const std::string &remote_agent) = 0;
    virtual nixl_status_t unloadMD(nixlBackendMD *input) = 0;
    virtual nixl_status_t prepXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                                   const nixl_meta_dlist_t &remote, const std::string &remote_agent,
                                   nixlBackendReqH *&handle, const nixl_opt_b_args_t *args) const = 0;
    virtual nixl_status_t postXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                                   const nixl_meta_dlist_t &remote, const std::string &remote_agent,
                                   nixlBackendReqH *&handle, const nixl_opt_b_args_t *args) const = 0;
    virtual nixl_status_t checkXfer(nixlBackendReqH *handle) const = 0;
    virtual nixl_status_t releaseReqH(nixlBackendReqH *handle) const = 0;
    virtual nixl_status_t prepMemView(const nixl_remote_meta_dlist_t &, nixlMemViewH &,
                                      const nixl_opt_b_args_t *) const {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual nixl_status_t prepMemView(const nixl_meta_dlist_t &, nixlMemViewH &, const nixl_opt_b_args_t *) const {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual void releaseMemView(nixlMemViewH) const {}
    virtual nixl_status_t getPublicData(const nixlBackendMD *meta, std::string &out) const = 0;
    virtual nixl_status_t getConnInfo(std::string &out) const = 0;
    virtual nixl_status_t loadRemoteConnInfo(const std::string &remote_agent, const std::string &conn_info) = 0;
    virtual nixl_status_t loadRemoteMD(const nixlBlobDesc &input, const nixl_mem_t &type,
                                       const std::string &remote_agent, nixlBackendMD *&output) = 0;
    virtual nixl_status_t loadLocalMD(nixlBackendMD *input, nixlBackendMD *&output) = 0;
    virtual nixl_status_t getNotifs(notif_list_t &notifs) = 0;
    virtual nixl_status_t genNotif(const std::string &remote_agent, const std::string &message) const = 0;
    virtual nixl_status_t queryMem(const nixl_reg_dlist_t &, std::vector<nixl_query_resp_t> &) const {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual nixl_status_t estimateXferCost(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                                           const nixl_meta_dlist_t &remote, const std::string &remote_agent,
                                           nixlBackendReqH *const &handle, std::chrono::microseconds &duration,
                                           std::chrono::microseconds &margin, nixl_cost_t &method,
                                           const nixlAgentOptionalArgs *args) const = 0;

private:
    friend struct nixl_layout;
    // The agent reads type, parameters, events and the error flag in place.
    nixl_backend_t backendType;
    nixl_b_params_t customParams;
    // Its real element type is only used by engines with telemetry. The vector stays empty.
    std::vector<uint64_t> telemetryEvents_;
    std::mutex telemetryEventsMutex_;

protected:
    const nixl_b_params_t &getParams() const { return customParams; }

    bool initErr = false;
    const std::string localAgent;
    const bool enableTelemetry_;
};

constexpr int NIXL_PLUGIN_API_VERSION = 1;

// What nixl_plugin_init returns.
class nixlBackendPlugin {
public:
    int api_version;
    nixlBackendEngine *(*create_engine)(const nixlBackendInitParams *init);
    void (*destroy_engine)(nixlBackendEngine *engine);
    const char *(*get_plugin_name)();
    const char *(*get_plugin_version)();
    nixl_b_params_t (*get_backend_options)();
    nixl_mem_list_t (*get_backend_mems)();
};

#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
struct nixl_layout {
    static_assert(sizeof(nixlBackendMD) == 16);
    static_assert(sizeof(nixlMetaDesc) == 32);
    static_assert(sizeof(nixlBlobDesc) == 56);
    static_assert(sizeof(nixl_meta_dlist_t) == 40);
    static_assert(sizeof(nixlBackendOptionalArgs) == 72);
    static_assert(offsetof(nixlBackendInitParams, customParams) == 64);
    static_assert(offsetof(nixlBackendInitParams, enableProgTh) == 72);
    static_assert(offsetof(nixlBackendInitParams, enableTelemetry_) == 92);
    static_assert(offsetof(nixlBackendEngine, customParams) == 40);
    static_assert(offsetof(nixlBackendEngine, telemetryEvents_) == 96);
    static_assert(offsetof(nixlBackendEngine, initErr) == 160);
    static_assert(offsetof(nixlBackendEngine, localAgent) == 168);
    static_assert(offsetof(nixlBackendEngine, enableTelemetry_) == 200);
};
#pragma GCC diagnostic pop
#endif
