#include "measure/verdicts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "measure/bench.hpp"
#include "measure/crossover.hpp"
#include "measure/units.hpp"

namespace sluice::measure {

namespace {

using Rows = std::vector<const Record*>;

struct Range {
    double low = 0, high = 0;
};

template <class F>
Range range_of(const Rows& rows, F&& value) {
    Range range{value(*rows.front()), value(*rows.front())};
    for (const Record* row : rows) {
        range.low = std::min(range.low, value(*row));
        range.high = std::max(range.high, value(*row));
    }
    return range;
}

/// "3.0 to 4.1", or one number if both print the same.
template <class F>
std::string print(const Range& range, F&& format) {
    const std::string low = format(range.low), high = format(range.high);
    return low == high ? low : low + " to " + high;
}

std::string times(double x) { return fmt::format("{:.{}f}", x, x < 9.95 ? 2 : 0); }

std::string name_of(const Record& r) {
    return fmt::format("{} {}, {}", describe_kernel(r), to_string(r.phase), to_string(r.dtype));
}

bool memory_bound_on(const DeviceSpec& device, const Record& r) {
    return r.bytes() / device.copy_bytes_per_s >= r.flops / device.matmul_flops_per_s;
}

/// "memory-bound", "compute-bound", or both with the count of each.
template <class F>
std::string bound(const Rows& rows, F&& is_memory_bound) {
    const auto memory = std::count_if(rows.begin(), rows.end(),
                                      [&](const Record* r) { return is_memory_bound(*r); });
    const auto all = static_cast<std::ptrdiff_t>(rows.size());
    if (memory == all) return "memory-bound";
    if (memory == 0) return "compute-bound";
    return fmt::format("memory-bound in {} of {} rows, else compute-bound", memory, all);
}

std::string verdict(const Rows& rows) {
    const Record& first = *rows.front();
    std::string text = fmt::format(
        "{} ({} row{}): {} on this machine by the floor; measured at {} times the floor ({} of "
        "it), {} of the matmul rate.",
        name_of(first), rows.size(), rows.size() == 1 ? "" : "s",
        bound(rows, [](const Record& r) { return r.memory_bound(); }),
        print(range_of(rows, [](const Record& r) { return 1 / r.fraction_of_floor(); }), times),
        print(range_of(rows, [](const Record& r) { return r.fraction_of_floor(); }),
              format_fraction),
        print(range_of(rows, [](const Record& r) { return r.fraction_of_matmul(); }),
              format_fraction));
    if (std::any_of(rows.begin(), rows.end(),
                    [](const Record* r) { return r->fraction_of_floor() > 1; })) {
        text += " Above 100 %: the data stayed in the cache between runs.";
    }
    text += fmt::format(
        " On an H200 its floor (bf16 rate) is {}, {}.",
        print(range_of(rows, [](const Record& r) { return r.h200_floor_us; }), format_us),
        bound(rows, [](const Record& r) { return memory_bound_on(h200(), r); }));
    text += fmt::format(
        " Peak memory: {} times inputs and outputs.",
        print(range_of(rows, [](const Record& r) { return r.peak_memory_ratio(); }), times));
    if (std::all_of(rows.begin(), rows.end(),
                    [](const Record* r) { return r->predicted_us > 0; })) {
        text += fmt::format(
            " Predicted time / measured: {}.",
            print(range_of(rows, [](const Record& r) { return r.predicted_us / r.measured_us; }),
                  times));
    }
    return text;
}

auto curve_key(const Record& r) {
    return std::tuple(r.device.name, r.threads, r.phase, r.dtype, r.dims.B, r.dims.H, r.dims.HV,
                      r.dims.K, r.dims.V);
}

double tokens_of(const Record& r) {
    return static_cast<double>(r.phase == Phase::kDecode ? r.context : r.dims.T);
}

std::string against_softmax(const Record& r, const Crossover& c) {
    const std::string shape = describe_curve_shape(r);
    const std::string range = c.shortest == c.longest
                                  ? fmt::format("T = {:.0f}", c.longest)
                                  : fmt::format("T = {:.0f} to {:.0f}", c.shortest, c.longest);
    const std::string ratio = print({c.slowest_ratio, c.fastest_ratio}, times);
    const std::string head =
        fmt::format("{} at {}, against softmax attention: ", name_of(r), shape);
    switch (c.standing) {
        case Standing::kOvertakes:
            return head + fmt::format(
                              "faster from about T = {:.0f} on (interpolated between {:.0f} "
                              "and {:.0f}); {} times as fast over {}.",
                              c.tokens, c.before, c.after, ratio, range);
        case Standing::kFallsBehind:
            return head + fmt::format(
                              "slower from about T = {:.0f} on (interpolated between {:.0f} "
                              "and {:.0f}); {} times as fast over {}.",
                              c.tokens, c.before, c.after, ratio, range);
        case Standing::kFasterThroughout:
            return head + fmt::format(
                              "no crossover in the measured range; faster at every {}, "
                              "{} times as fast.",
                              range, ratio);
        case Standing::kSlowerThroughout:
            return head + fmt::format(
                              "no crossover in the measured range; slower at every {}, "
                              "{} times as fast.",
                              range, ratio);
        case Standing::kCrossesOften:
            return head + fmt::format(
                              "more than one crossing over {}: {} times as fast; measure "
                              "again on a quieter machine.",
                              range, ratio);
        case Standing::kNothingShared: break;
    }
    return head + "no T was measured for both.";
}

}  // namespace

std::string describe_kernel(const Record& r) {
    if (r.op == kSoftmax) return r.op;
    std::string name = fmt::format("{} {}", r.op, r.kernel);
    if (r.backend == "oracle") return name + " (oracle)";
    if (r.precision != to_string(Precision::kFloat32)) name += " (" + r.precision + " arithmetic)";
    return name;
}

std::string describe_curve_shape(const Record& record) {
    const Dims& d = record.dims;
    std::string text = fmt::format("B{} H{}", d.B, d.H);
    if (d.HV != d.H) text += fmt::format(" HV{}", d.HV);
    return text + fmt::format(" K{} V{}", d.K, d.V);
}

std::string describe_shape(const Record& record) {
    const double tokens = tokens_of(record);
    std::string text = describe_curve_shape(record);
    if (tokens > 0) text.insert(text.find(" H"), fmt::format(" T{:.0f}", tokens));
    return text;
}

std::string describe_conditions(const Record& r) {
    const std::string who = r.clock_mhz > 0 ? fmt::format("{:.0f} MHz nominal", r.clock_mhz)
                                            : fmt::format("{} threads", r.threads);
    return fmt::format("{}, caches {}, seed {}", who, r.cache, r.seed);
}

std::string describe_rates(const DeviceSpec& device) {
    return fmt::format("{}: copy {}, matmul {} ({})", device.name,
                       format_with_prefix(device.copy_bytes_per_s, "B/s"),
                       format_with_prefix(device.matmul_flops_per_s, "FLOP/s"), device.source);
}

std::vector<std::string> verdicts_by_op(std::span<const Record> records) {
    std::vector<std::pair<std::string, Rows>> groups;
    for (const Record& r : records) {
        if (!r.ran()) continue;
        const std::string key = name_of(r) + "\n" + r.device.name;
        auto it = std::find_if(groups.begin(), groups.end(),
                               [&](const auto& group) { return group.first == key; });
        if (it == groups.end()) it = groups.insert(it, {key, {}});
        it->second.push_back(&r);
    }
    std::vector<std::string> verdicts;
    verdicts.reserve(groups.size());
    for (const auto& [key, rows] : groups) verdicts.push_back(verdict(rows));
    return verdicts;
}

std::vector<std::string> verdicts_against_softmax(std::span<const Record> records) {
    std::map<decltype(curve_key(records.front())), Curve> references;
    for (const Record& r : records) {
        if (r.ran() && r.op == kSoftmax) references[curve_key(r)][tokens_of(r)] = r.measured_us;
    }
    std::vector<std::string> verdicts;
    std::vector<const Record*> done;
    for (const Record& r : records) {
        const auto reference = references.find(curve_key(r));
        if (!r.ran() || r.op == kSoftmax || reference == references.end()) continue;
        const auto same_curve = [&](const Record& other) {
            return other.ran() && describe_kernel(other) == describe_kernel(r) &&
                   curve_key(other) == curve_key(r);
        };
        if (std::any_of(done.begin(), done.end(),
                        [&](const Record* other) { return same_curve(*other); })) {
            continue;
        }
        done.push_back(&r);
        Curve curve;
        for (const Record& other : records) {
            if (same_curve(other)) curve[tokens_of(other)] = other.measured_us;
        }
        if (r.phase == Phase::kDecode) {
            // A recurrence's step does not depend on how many tokens went before.
            curve.clear();
            for (const auto& [tokens, us] : reference->second) curve[tokens] = r.measured_us;
        }
        verdicts.push_back(against_softmax(r, find_crossover(curve, reference->second)));
    }
    return verdicts;
}

std::vector<std::string> verdicts_on_noise(std::span<const Record> records) {
    constexpr double kNoisy = 0.05;
    int ran = 0, noisy = 0, single = 0;
    const Record* worst = nullptr;
    for (const Record& r : records) {
        if (!r.ran()) continue;
        ++ran;
        single += r.samples == 1 ? 1 : 0;
        noisy += r.relative_mad > kNoisy ? 1 : 0;
        if (worst == nullptr || r.relative_mad > worst->relative_mad) worst = &r;
    }
    std::vector<std::string> verdicts;
    if (noisy > 0) {
        verdicts.push_back(fmt::format(
            "{} of {} rows are noisy (median deviation over {} of the median; the worst, {} at {}, "
            "{}): other programs were probably running.",
            noisy, ran, format_fraction(kNoisy), name_of(*worst), describe_shape(*worst),
            format_fraction(worst->relative_mad)));
    }
    if (single > 0) {
        verdicts.push_back(fmt::format("{} of {} rows were run once only.", single, ran));
    }
    if (verdicts.empty() && worst != nullptr) {
        verdicts.push_back(fmt::format("No row's median deviation exceeds {} of its median.",
                                       format_fraction(kNoisy)));
    }
    return verdicts;
}

}  // namespace sluice::measure
