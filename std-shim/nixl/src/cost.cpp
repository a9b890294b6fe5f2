#include "cost.h"

#include <algorithm>
#include <cmath>

namespace {

// Assumptions until transfers are measured: a round trip, and the rate of devices whose rate is unknown, such as loopback.
constexpr double ROUND_TRIP_US = 5;
constexpr double UNKNOWN_BYTES_PER_US = 1000;
// The part of a NIC's rate that is payload.
constexpr double PAYLOAD = 0.9;
// Length at which the assumed rate is one point of the fit.
constexpr double ASSUMED_BYTES = 1 << 20;
// Relative errors of the assumptions: of an unknown rate, and of a NIC's.
constexpr double VAGUE = 1;
constexpr double KNOWN = 0.25;
// That of the round trip beside measurements: a short transfer that took long, such as the first one with a peer, says more
// about the round trip than about the rate.
constexpr double ANY_ROUND_TRIP = 20;
// The weight of the assumptions beside measurements, with which they only decide what these leave open, such as the time
// of short transfers if all were long.
constexpr double ASSUMED_WEIGHT = 1e-4;
// What the fit leaves open counts at most as this multiple of the estimate.
constexpr double MOST_OPEN = 10;
// Relative error of a measurement at least: times of equal transfers vary even if the last ones did not.
constexpr double LEAST_ERROR = 0.1;
// The part of older measurements that remains at each new one, so that about eight count.
constexpr double KEPT = 7.0 / 8;
// The determinant of the fit at least, relative to its larger term, which has a precision of 2^-53.
constexpr double LEAST_DETERMINANT = 1e-14;

} // namespace

void CostModel::Sums::scale(double factor) {
    one *= factor, x *= factor, xx *= factor, y *= factor, xy *= factor;
}

void CostModel::Sums::add(double bytes, double took, double certainty) {
    const double weight = certainty / (took * took);
    one += weight;
    x += weight * bytes;
    xx += weight * bytes * bytes;
    y += weight * took;
    xy += weight * bytes * took;
}

CostModel::CostModel(uint64_t megabits) : error(LEAST_ERROR * LEAST_ERROR) {
    const bool is_known = megabits > 0;
    const double bytes_per_us = is_known ? static_cast<double>(megabits) / 8 * PAYLOAD : UNKNOWN_BYTES_PER_US;
    assumed_slope = 1 / bytes_per_us;
    // A measurement has the certainty 1 and the relative error LEAST_ERROR or more.
    const auto certainty = [](double relative) { return LEAST_ERROR * LEAST_ERROR / (relative * relative); };
    const auto assume = [&](Sums &sums, double round_trip_error, double rate_error) {
        sums.add(0, ROUND_TRIP_US, certainty(round_trip_error));
        sums.add(ASSUMED_BYTES, ROUND_TRIP_US + ASSUMED_BYTES * assumed_slope, certainty(rate_error));
    };
    assume(assumed, VAGUE, is_known ? KNOWN : VAGUE);
    assume(left_open, ANY_ROUND_TRIP, VAGUE);
}

void CostModel::learn(uint64_t bytes, Microseconds took) {
    if (bytes == 0 || !(took.count() > 0)) {
        return;
    }
    double kept = KEPT;
    if (has_measured) {
        const double expected = of(bytes).duration.count();
        const double relative = (took.count() - expected) / std::max(took.count(), expected);
        error = KEPT * error + (1 - KEPT) * relative * relative;
        // Weights are of relative errors, so a slow time weighs less. Without this, fast times of
        // before a rail failed would outweigh slow ones for dozens of transfers.
        const double ratio = std::min(1.0, expected / took.count());
        kept *= ratio * ratio;
    }
    has_measured = true;
    measured.scale(kept);
    measured.add(static_cast<double>(bytes), took.count(), 1);
}

CostModel::Estimate CostModel::of(uint64_t bytes) const {
    // The smaller ratio, because a measurement that is far slower than assumed has sums that are far smaller.
    const Sums &other = has_measured ? left_open : assumed;
    const double share = has_measured
        ? ASSUMED_WEIGHT * std::min({1.0, measured.one / other.one, measured.xx / other.xx}) : 1;
    const double one = share * other.one + measured.one, x = share * other.x + measured.x;
    const double xx = share * other.xx + measured.xx;
    const double y = share * other.y + measured.y, xy = share * other.xy + measured.xy;
    // Positive, because the assumptions have two lengths; but rounding loses them beside measurements of one length whose
    // times differ by many orders of magnitude.
    const double determinant = std::max(one * xx - x * x, LEAST_DETERMINANT * one * xx);
    double base = (xx * y - x * xy) / determinant;
    double slope = (one * xy - x * y) / determinant;
    // Neither can be negative. If longer transfers were faster, something else made the short ones slow, such as
    // connecting: the assumed slope says more.
    if (slope < 0) {
        slope = assumed_slope;
        base = (y - slope * x) / one;
    }
    // Then the fit is the best one without it.
    if (base < 0) {
        base = 0;
        slope = xy / xx;
    }
    const double length = static_cast<double>(bytes);
    const double duration = base + slope * length;
    // What the fit leaves open, far from measured lengths more, and what single transfers vary.
    const double square = std::max(error, LEAST_ERROR * LEAST_ERROR);
    // It is not negative but for rounding.
    const double of_fit = std::max(0.0, square * (xx - 2 * length * x + length * length * one) / determinant);
    const double squared = duration * duration;
    return {Microseconds(duration),
            Microseconds(std::sqrt(std::min(of_fit, MOST_OPEN * MOST_OPEN * squared) + square * squared))};
}
