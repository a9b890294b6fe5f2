// The engine that NIXL's agent calls: an adapter from NIXL's interface to a hub. Exceptions do not
// leave it.
#pragma once

#include "hub.h"

#include <unistd.h>

class Engine final : public nixlBackendEngine {
public:
    // `getInitErr` returns whether it failed.
    explicit Engine(const nixlBackendInitParams *init);
    // In a fork of the process that made the engine, releases nothing and sends nothing.
    ~Engine() override;

    bool supportsRemote() const override { return true; }
    bool supportsLocal() const override { return true; }
    bool supportsNotif() const override { return true; }
    nixl_mem_list_t getSupportedMems() const override;

    nixl_status_t registerMem(const nixlBlobDesc &mem, const nixl_mem_t &type, nixlBackendMD *&out) override;
    nixl_status_t deregisterMem(nixlBackendMD *meta) override;
    nixl_status_t connect(const std::string &remote_agent) override;
    nixl_status_t disconnect(const std::string &remote_agent) override;
    nixl_status_t unloadMD(nixlBackendMD *input) override;
    nixl_status_t prepXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                           const nixl_meta_dlist_t &remote, const std::string &remote_agent,
                           nixlBackendReqH *&handle, const nixl_opt_b_args_t *args) const override;
    nixl_status_t postXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                           const nixl_meta_dlist_t &remote, const std::string &remote_agent,
                           nixlBackendReqH *&handle, const nixl_opt_b_args_t *args) const override;
    nixl_status_t checkXfer(nixlBackendReqH *handle) const override;
    nixl_status_t releaseReqH(nixlBackendReqH *handle) const override;
    nixl_status_t getPublicData(const nixlBackendMD *meta, std::string &out) const override;
    nixl_status_t getConnInfo(std::string &out) const override;
    nixl_status_t loadRemoteConnInfo(const std::string &remote_agent, const std::string &conn_info) override;
    nixl_status_t loadRemoteMD(const nixlBlobDesc &input, const nixl_mem_t &type, const std::string &remote_agent,
                               nixlBackendMD *&output) override;
    nixl_status_t loadLocalMD(nixlBackendMD *input, nixlBackendMD *&output) override;
    nixl_status_t getNotifs(notif_list_t &notifs) override;
    nixl_status_t genNotif(const std::string &remote_agent, const std::string &message) const override;
    nixl_status_t estimateXferCost(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                                   const nixl_meta_dlist_t &remote, const std::string &remote_agent,
                                   nixlBackendReqH *const &handle, std::chrono::microseconds &duration,
                                   std::chrono::microseconds &margin, nixl_cost_t &method,
                                   const nixlAgentOptionalArgs *args) const override;

private:
    bool is_forked() const { return getpid() != process; }
    // Runs `call`, unless this process is a fork. Exceptions become a status and a line in the log.
    template <class F> nixl_status_t guarded(const char *what, F &&call) const;

    // The process that made the engine.
    const pid_t process = getpid();
    std::unique_ptr<Hub> hub;
    bool has_vram = false;
};
