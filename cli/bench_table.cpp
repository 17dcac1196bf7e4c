#include "cli/bench_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "cli/plot.hpp"
#include "cli/table.hpp"
#include "measure/units.hpp"
#include "measure/verdicts.hpp"

namespace sluice::cli {

using namespace measure;

namespace {

std::string spread(const Record& record) {
    return record.samples < 2 ? "one run" : fmt::format("{:.1f} %", 100 * record.relative_mad);
}

std::vector<std::string> cells(const Record& r) {
    return {
        r.op,
        to_string(r.phase),
        fmt::format("{} {}", r.backend, r.kernel),
        describe_shape(r),
        to_string(r.dtype),
        format_us(r.measured_us),
        spread(r),
        r.host_us > 0 ? format_us(r.host_us) : "-",
        format_with_prefix(r.tokens_per_s(), ""),
        format_number(r.gflops_per_s()),
        format_number(r.gbytes_per_s()),
        format_fraction(r.fraction_of_floor()),
        format_fraction(r.fraction_of_matmul()),
        fmt::format("{:.2f}x", r.peak_memory_ratio()),
        r.model,
    };
}

std::string conditions(const Record& r) {
    return describe_conditions(r) + (r.gates.empty() ? "" : ", gates " + r.gates) + "\n";
}

bool is_row(const Record& record) { return record.ran(); }

}  // namespace

std::string bench_table(std::span<const Record> records) {
    std::string text;
    const auto with_gates = std::find_if(records.begin(), records.end(), [](const Record& r) {
        return r.ran() && !r.gates.empty();
    });
    const auto any = std::find_if(records.begin(), records.end(), is_row);
    const auto shown = with_gates != records.end() ? with_gates : any;
    if (shown != records.end()) {
        text += describe_rates(shown->device) + "\n" + conditions(*shown) + "\n";
        Table table({"<op", "<phase", "<backend kernel", "<shape", "<dtype", "median", "spread",
                     "host", "tokens/s", "GFLOP/s", "GB/s", "of floor", "of matmul", "memory",
                     "<model"});
        for (const Record& record : records) {
            if (record.ran()) table.add(cells(record));
        }
        text += table.to_string();
    }
    for (const Record& r : records) {
        if (r.ran()) continue;
        text += fmt::format("skipped: {} {} {} {} {}: {}\n", r.op, to_string(r.phase), r.backend,
                            describe_shape(r), to_string(r.dtype), r.skipped);
    }
    return text;
}

std::string bench_plot(std::span<const Record> records) {
    std::vector<Series> series;
    std::set<std::int64_t> lengths;
    for (const Record& r : records) {
        if (!r.ran() || r.phase != Phase::kPrefill || r.measured_us <= 0) continue;
        const std::string name = fmt::format("{} {} {}", describe_kernel(r),
                                             describe_curve_shape(r), to_string(r.dtype));
        auto it = std::find_if(series.begin(), series.end(),
                               [&](const Series& s) { return s.name == name; });
        if (it == series.end()) it = series.insert(it, {name, {}});
        it->points.emplace_back(static_cast<double>(r.dims.T), r.measured_us);
        lengths.insert(r.dims.T);
    }
    return lengths.size() > 1 ? plot_log_log(series, "T", "latency") : "";
}

}  // namespace sluice::cli
