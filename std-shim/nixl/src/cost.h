// Estimates how long a transfer with one peer takes, from the transfers that have ended.
#pragma once

#include <chrono>
#include <cstdint>

class CostModel {
public:
    using Microseconds = std::chrono::duration<double, std::micro>;

    struct Estimate {
        Microseconds duration;
        // Standard deviation of the duration.
        Microseconds margin;
    };

    // `megabits` is the rate of the devices that carry rails in Mbit/s; 0: unknown.
    explicit CostModel(uint64_t megabits);
    // Learns that transfers of this many bytes in total took this long, from the post of the first to the end of the
    // last. Zero bytes or no time teach nothing.
    void learn(uint64_t bytes, Microseconds took);
    // Estimates a transfer of this many bytes that has the rails for itself.
    Estimate of(uint64_t bytes) const;

private:
    // Weighted sums of 1, x, x * x, y and x * y, for the fit of y = base + slope * x.
    struct Sums {
        double one = 0, x = 0, xx = 0, y = 0, xy = 0;
        void scale(double factor);
        // Adds a point with the weight `certainty` / (y * y), so that relative errors count.
        void add(double bytes, double took, double certainty);
    };

    // What is assumed before there is a measurement, and beside measurements.
    Sums assumed;
    Sums left_open;
    // In us for each byte.
    double assumed_slope;
    Sums measured;
    // Mean square of the relative errors of the latest estimates.
    double error;
    bool has_measured = false;
};
