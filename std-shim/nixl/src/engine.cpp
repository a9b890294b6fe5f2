#include "engine.h"
#include "gpu.h"

template <class F> nixl_status_t Engine::guarded(const char *what, F &&call) const {
    try {
        if (initErr) {
            throw Failure(NIXL_ERR_BACKEND, "this backend could not be created");
        }
        if (is_forked()) {
            throw Failure(NIXL_ERR_NOT_ALLOWED, "process " + std::to_string(getpid()) + " is a fork of process " +
                                                    std::to_string(process) + ", which made this backend");
        }
        return call();
    } catch (const Failure &failure) {
        log_line(LogLevel::Warn, localAgent, std::string(what) + ": " + failure.what());
        return failure.status;
    } catch (const std::exception &failure) {
        log_line(LogLevel::Warn, localAgent, std::string(what) + ": " + failure.what());
        return NIXL_ERR_BACKEND;
    }
}

Engine::Engine(const nixlBackendInitParams *init) : nixlBackendEngine(init) {
    const nixl_status_t status = guarded("creating the backend", [&] {
        const Settings settings = Settings::read(getParams());
        set_log_level(settings.log_level);
        if (!settings.ignored.empty()) {
            log_line(LogLevel::Warn, localAgent, "variables of a Kubernetes Service are ignored: " + settings.ignored);
        }
        hub = std::make_unique<Hub>(settings, localAgent, init->enableProgTh);
        has_vram = settings.backend == POLYRAIL_BACKEND_VERBS && has_gpu();
        return NIXL_SUCCESS;
    });
    initErr = status != NIXL_SUCCESS;
}

Engine::~Engine() {
    if (is_forked()) {
        // The hub's thread, sockets and queue pairs are the parent's, and its mutex may be locked.
        static_cast<void>(hub.release());
    }
}

nixl_mem_list_t Engine::getSupportedMems() const {
    return has_vram ? nixl_mem_list_t{DRAM_SEG, VRAM_SEG} : nixl_mem_list_t{DRAM_SEG};
}

nixl_status_t Engine::registerMem(const nixlBlobDesc &mem, const nixl_mem_t &type, nixlBackendMD *&out) {
    return guarded("registering memory", [&] {
        out = new LocalMemory(hub->domain(), mem, type);
        return NIXL_SUCCESS;
    });
}

nixl_status_t Engine::deregisterMem(nixlBackendMD *meta) {
    return guarded("deregistering memory", [&] {
        const std::unique_ptr<LocalMemory> memory(static_cast<LocalMemory *>(meta));
        memory->close();
        return NIXL_SUCCESS;
    });
}

nixl_status_t Engine::getPublicData(const nixlBackendMD *meta, std::string &out) const {
    return guarded("exporting memory", [&] {
        out = static_cast<const LocalMemory *>(meta)->exported();
        return NIXL_SUCCESS;
    });
}

nixl_status_t Engine::loadLocalMD(nixlBackendMD *input, nixlBackendMD *&output) {
    return guarded("loading local memory", [&] {
        const auto *memory = static_cast<const LocalMemory *>(input);
        const nixlBasicDesc whole{memory->start, memory->length, 0};
        output = new RemoteMemory(whole, memory->exported(), localAgent);
        return NIXL_SUCCESS;
    });
}

nixl_status_t Engine::loadRemoteMD(const nixlBlobDesc &input, const nixl_mem_t &, const std::string &remote_agent,
                                   nixlBackendMD *&output) {
    return guarded("loading remote memory", [&] {
        output = new RemoteMemory(input, input.metaInfo, remote_agent);
        return NIXL_SUCCESS;
    });
}

nixl_status_t Engine::unloadMD(nixlBackendMD *input) {
    // The library refuses to close what belongs to the parent of this process.
    delete input;
    return NIXL_SUCCESS;
}

nixl_status_t Engine::getConnInfo(std::string &out) const {
    return guarded("returning the address", [&] {
        out = hub->address();
        return NIXL_SUCCESS;
    });
}

nixl_status_t Engine::loadRemoteConnInfo(const std::string &remote_agent, const std::string &conn_info) {
    return guarded("loading an address", [&] {
        hub->load(remote_agent, conn_info);
        return NIXL_SUCCESS;
    });
}

nixl_status_t Engine::connect(const std::string &remote_agent) {
    return guarded("connecting", [&] {
        // NIXL calls this for every new backend. The connection is made on first use.
        if (remote_agent != localAgent) {
            hub->connect(remote_agent);
        }
        return NIXL_SUCCESS;
    });
}

nixl_status_t Engine::disconnect(const std::string &remote_agent) {
    return guarded("disconnecting", [&] {
        hub->disconnect(remote_agent);
        return NIXL_SUCCESS;
    });
}

nixl_status_t Engine::prepXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                               const nixl_meta_dlist_t &remote, const std::string &remote_agent,
                               nixlBackendReqH *&handle, const nixl_opt_b_args_t *) const {
    return guarded("preparing a transfer", [&] {
        auto transfer = std::make_unique<Transfer>(operation, local, remote, remote_agent);
        hub->begin(remote_agent);
        handle = transfer.release();
        return NIXL_SUCCESS;
    });
}

nixl_status_t Engine::postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &,
                               const std::string &, nixlBackendReqH *&handle, const nixl_opt_b_args_t *args) const {
    return guarded("posting a transfer", [&] {
        auto &transfer = static_cast<Transfer &>(*handle);
        if (transfer.status() == NIXL_IN_PROG) {
            return NIXL_ERR_REPOST_ACTIVE;
        }
        std::optional<std::string> notification;
        if (args != nullptr && args->hasNotif) {
            notification = args->notifMsg;
        }
        hub->start(transfer, std::move(notification));
        return hub->look(transfer);
    });
}

nixl_status_t Engine::checkXfer(nixlBackendReqH *handle) const {
    return guarded("checking a transfer", [&] { return hub->look(static_cast<const Transfer &>(*handle)); });
}

nixl_status_t Engine::releaseReqH(nixlBackendReqH *handle) const {
    return guarded("releasing a transfer", [&] {
        auto *transfer = static_cast<Transfer *>(handle);
        hub->release(*transfer);
        delete transfer;
        return NIXL_SUCCESS;
    });
}

nixl_status_t Engine::getNotifs(notif_list_t &notifs) {
    return guarded("taking notifications", [&] {
        notifs = hub->take_notifications();
        return NIXL_SUCCESS;
    });
}

nixl_status_t Engine::genNotif(const std::string &remote_agent, const std::string &message) const {
    return guarded("sending a notification", [&] {
        hub->notify(remote_agent, message);
        return NIXL_SUCCESS;
    });
}

nixl_status_t Engine::estimateXferCost(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &,
                                       const std::string &, nixlBackendReqH *const &handle,
                                       std::chrono::microseconds &duration, std::chrono::microseconds &margin,
                                       nixl_cost_t &method, const nixlAgentOptionalArgs *) const {
    return guarded("estimating a transfer", [&] {
        const CostModel::Estimate estimate = hub->estimate(static_cast<const Transfer &>(*handle));
        duration = std::chrono::ceil<std::chrono::microseconds>(estimate.duration);
        margin = std::chrono::ceil<std::chrono::microseconds>(estimate.margin);
        method = nixl_cost_t::ANALYTICAL_BACKEND;
        return NIXL_SUCCESS;
    });
}
