#include "notifications.h"

bool Notifications::add(uint64_t number, const std::string &agent, std::string message) {
    const std::lock_guard<std::mutex> guard(mutex);
    uint64_t &untaken = costs[number];
    const uint64_t cost = cost_of(message.size());
    if (untaken + cost > MAX_UNTAKEN_COST) {
        return false;
    }
    untaken += cost;
    list.emplace_back(agent, std::move(message));
    return true;
}

notif_list_t Notifications::take() {
    const std::lock_guard<std::mutex> guard(mutex);
    notif_list_t all;
    all.swap(list);
    if (!all.empty()) {
        costs.clear();
        taken.fetch_add(1, std::memory_order_release);
    }
    return all;
}

uint64_t Notifications::untaken(uint64_t number) const {
    const std::lock_guard<std::mutex> guard(mutex);
    const auto found = costs.find(number);
    return found == costs.end() ? 0 : found->second;
}
