// Estimates of costs, without transfers: what measurements teach.

#include "../src/cost.h"
#include "agent.h"

#include <cmath>

namespace {

using Us = CostModel::Microseconds;

// Returns whether the model expects this duration, with a relative error of at most `within`.
bool expects(const CostModel &model, uint64_t bytes, double us, double within) {
    return std::abs(model.of(bytes).duration.count() - us) <= within * us;
}

double relative_margin(const CostModel &model, uint64_t bytes) {
    const CostModel::Estimate estimate = model.of(bytes);
    return estimate.margin / estimate.duration;
}

void the_rate_of_nics_is_assumed() {
    // 1 GiB at 100 Gbit/s is 85.9 ms without headers.
    const CostModel nics(100'000);
    REQUIRE(nics.of(1 << 30).duration > Us(85'899) && expects(nics, 1 << 30, 85'899, 0.2));
    REQUIRE(relative_margin(nics, 1 << 30) < 0.4 && relative_margin(nics, 1) > 0.8);
    const CostModel unknown(0);
    REQUIRE(unknown.of(0).duration > Us(0) && unknown.of(1 << 30).duration > unknown.of(1 << 20).duration);
    REQUIRE(relative_margin(unknown, 1 << 30) > 0.8);
}

void measurements_outweigh_assumptions() {
    // Transfers that are 100,000 and 10,000 times as slow as assumed, and some that are 9 times as fast.
    for (const double rate : {0.1, 1.0, 100'000.0}) {
        CostModel model(100'000);
        for (int count = 0; count < 3; ++count) {
            model.learn(64 << 20, Us((64 << 20) / rate));
        }
        REQUIRE(expects(model, 64 << 20, (64 << 20) / rate, 0.05));
        REQUIRE(expects(model, 32 << 20, (32 << 20) / rate, 0.1));
    }
    CostModel slow(0);
    for (int count = 0; count < 3; ++count) {
        slow.learn(8, Us(2000));
    }
    REQUIRE(expects(slow, 8, 2000, 0.1));
}

void short_and_long_transfers_are_told_apart() {
    CostModel model(0);
    const auto took = [](uint64_t bytes) { return 100 + static_cast<double>(bytes) / 2000; };
    for (int turn = 0; turn < 10; ++turn) {
        for (const uint64_t bytes : {64, 4096, 1 << 20, 64 << 20}) {
            model.learn(bytes, Us(took(bytes)));
        }
    }
    for (const uint64_t bytes : {1ULL, 64ULL, 100'000ULL, 8ULL << 20, 1ULL << 32}) {
        REQUIRE(expects(model, bytes, took(bytes), 0.03));
        REQUIRE(relative_margin(model, bytes) < 0.25);
    }
}

void a_first_transfer_that_connects_says_little_about_the_rate() {
    for (const uint64_t megabits : {0, 100'000}) {
        CostModel model(megabits);
        model.learn(4096, Us(3700));
        REQUIRE(expects(model, 4096, 3700, 0.1));
        REQUIRE(model.of(1 << 20).duration < Us(10'000));
        // Longer ones are faster, since the connection is there.
        model.learn(1 << 20, Us(690));
        REQUIRE(model.of(64 << 20).duration > Us(5000));
        model.learn(64 << 20, Us(35'000));
        REQUIRE(expects(model, 64 << 20, 35'000, 0.3));
    }
}

void the_last_measurements_count() {
    CostModel model(0);
    for (int count = 0; count < 1000; ++count) {
        model.learn(1 << 20, Us(500));
    }
    REQUIRE(expects(model, 1 << 20, 500, 0.02));
    // One of two rails fails.
    for (int count = 0; count < 8; ++count) {
        model.learn(1 << 20, Us(1000));
    }
    REQUIRE(expects(model, 1 << 20, 1000, 0.1));
    // It returns.
    for (int count = 0; count < 8; ++count) {
        model.learn(1 << 20, Us(500));
    }
    REQUIRE(expects(model, 1 << 20, 500, 0.1));
}

void the_margin_is_how_much_times_vary() {
    CostModel equal(0), varying(0);
    for (int count = 0; count < 100; ++count) {
        equal.learn(1 << 20, Us(1000));
        varying.learn(1 << 20, Us(count % 2 == 0 ? 700 : 2100));
    }
    REQUIRE(relative_margin(equal, 1 << 20) < 0.15);
    REQUIRE(relative_margin(varying, 1 << 20) > 0.3);
    // Nothing is known of other lengths.
    REQUIRE(relative_margin(equal, 1 << 10) > 2 * relative_margin(equal, 1 << 20));
}

void no_measurement_makes_an_estimate_absurd() {
    CostModel model(0);
    model.learn(0, Us(1000));
    model.learn(1 << 20, Us(0));
    model.learn(1 << 20, Us(-1));
    REQUIRE(relative_margin(model, 1 << 20) > 0.8);
    // Long transfers that are faster than short ones, and the contrary of overhead.
    const std::pair<uint64_t, double> odd[] = {{8, 1e6}, {1ULL << 40, 1}, {1, 1e9}, {1 << 20, 1e-3}, {1 << 10, 1e-6}};
    for (const auto &[bytes, took] : odd) {
        for (int count = 0; count < 20; ++count) {
            model.learn(bytes, Us(took));
            double last = 0;
            for (const uint64_t length : {0ULL, 1ULL, 1ULL << 20, 1ULL << 40}) {
                const CostModel::Estimate estimate = model.of(length);
                REQUIRE(std::isfinite(estimate.duration.count()) && estimate.duration.count() >= last);
                REQUIRE(std::isfinite(estimate.margin.count()) && estimate.margin.count() >= 0);
                last = estimate.duration.count();
            }
        }
    }
}

} // namespace

int main() {
    the_rate_of_nics_is_assumed();
    measurements_outweigh_assumptions();
    short_and_long_transfers_are_told_apart();
    a_first_transfer_that_connects_says_little_about_the_rate();
    the_last_measurements_count();
    the_margin_is_how_much_times_vary();
    no_measurement_makes_an_estimate_absurd();
    std::printf("estimates follow measurements\n");
}
