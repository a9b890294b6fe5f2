#include "notifications.h"

#include <algorithm>
#include <tuple>

void Notifications::open(uint64_t number, const Source &source) {
    const std::lock_guard<std::mutex> guard(mutex);
    accounts[number].source = source;
}

void Notifications::close(uint64_t number) {
    const std::lock_guard<std::mutex> guard(mutex);
    const auto found = accounts.find(number);
    if (found == accounts.end() || !found->second.is_open) {
        return;
    }
    Account &account = found->second;
    account.is_open = false;
    kept -= account.begun;
    account.begun = 0;
    if (account.count == 0) {
        accounts.erase(found);
    } else {
        account.kept += CLOSED_COST;
        kept += CLOSED_COST;
    }
}

bool Notifications::add(uint64_t number, std::string message) {
    const std::lock_guard<std::mutex> guard(mutex);
    Account &account = accounts[number];
    const uint64_t cost = cost_of(message.size());
    if (account.untaken + cost > MAX_UNTAKEN_COST) {
        return false;
    }
    const uint64_t with_name = cost + account.source.agent.size();
    account.count += 1;
    account.untaken += cost;
    account.kept += with_name;
    kept += with_name;
    list.push_back(Untaken{number, std::move(message)});
    return true;
}

void Notifications::begun(uint64_t number, size_t bytes) {
    const std::lock_guard<std::mutex> guard(mutex);
    Account &account = accounts[number];
    kept = kept - account.begun + bytes;
    account.begun = bytes;
}

// Returns the account that loses its notifications next.
Notifications::Accounts::iterator Notifications::most() {
    std::map<std::string, uint64_t> hosts;
    std::map<std::pair<std::string, std::string>, uint64_t> agents;
    for (const auto &[number, account] : accounts) {
        hosts[account.source.host] += account.all();
        agents[{account.source.host, account.source.agent}] += account.all();
    }
    const auto rank = [&](const Account &account) {
        const Source &source = account.source;
        // Sources with equal sums are not mixed up.
        return std::make_tuple(hosts.at(source.host), source.host, agents.at({source.host, source.agent}),
                               source.agent, account.all());
    };
    return std::max_element(accounts.begin(), accounts.end(),
                            [&](const auto &a, const auto &b) { return rank(a.second) < rank(b.second); });
}

Notifications::Dropped Notifications::drop(Accounts::iterator found) {
    auto &[number, account] = *found;
    const Dropped dropped{number, account.source, account.count, account.all()};
    const auto is_its = [number = number](const Untaken &untaken) { return untaken.number == number; };
    list.erase(std::remove_if(list.begin(), list.end(), is_its), list.end());
    kept -= account.all();
    account.count = account.untaken = account.kept = account.begun = 0;
    if (!account.is_open) {
        accounts.erase(found);
    }
    return dropped;
}

std::vector<Notifications::Dropped> Notifications::drop_excess() {
    const std::lock_guard<std::mutex> guard(mutex);
    std::vector<Dropped> dropped;
    while (kept > MAX_KEPT_COST) {
        dropped.push_back(drop(most()));
    }
    return dropped;
}

notif_list_t Notifications::take() {
    const std::lock_guard<std::mutex> guard(mutex);
    notif_list_t all;
    all.reserve(list.size());
    for (Untaken &untaken : list) {
        all.emplace_back(accounts.at(untaken.number).source.agent, std::move(untaken.message));
    }
    list.clear();
    for (auto account = accounts.begin(); account != accounts.end();) {
        kept -= account->second.kept;
        account->second.count = account->second.untaken = account->second.kept = 0;
        account = account->second.is_open ? std::next(account) : accounts.erase(account);
    }
    if (!all.empty()) {
        taken.fetch_add(1, std::memory_order_release);
    }
    return all;
}

uint64_t Notifications::untaken(uint64_t number) const {
    const std::lock_guard<std::mutex> guard(mutex);
    const auto found = accounts.find(number);
    return found == accounts.end() ? 0 : found->second.untaken;
}
