#include "measure/report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "measure/bench.hpp"
#include "measure/units.hpp"
#include "measure/verdicts.hpp"
#include "sluice/error.hpp"

namespace sluice::measure {

namespace {

void add_once(std::vector<std::string>& list, const std::string& item) {
    if (!item.empty() && std::find(list.begin(), list.end(), item) == list.end()) {
        list.push_back(item);
    }
}

std::string day(const std::string& date) { return date.substr(0, date.find('T')); }

std::vector<std::string> provenance_of(std::span<const Record> records) {
    std::vector<std::string> lines;
    for (const Record& r : records) add_once(lines, describe_rates(r.device));
    for (const Record& r : records) {
        add_once(lines, fmt::format("sluice {}, commit {}, {}", r.version, r.commit, day(r.date)));
    }
    for (const Record& r : records) {
        if (!r.ran()) continue;
        add_once(lines, describe_conditions(r));
        if (!r.gates.empty()) add_once(lines, "gates " + r.gates);
    }
    add_once(lines, "For comparison, floors of the same bytes and FLOPs on " +
                        describe_rates(h200()) +
                        "; its matmul rate is that of bf16, also for rows of another type");
    return lines;
}

std::vector<std::string> cells(const Record& r) {
    return {r.op,
            to_string(r.phase),
            fmt::format("{} {}", r.backend, r.kernel),
            describe_shape(r),
            to_string(r.dtype),
            format_us(r.measured_us),
            fmt::format("{} to {}", format_us(r.p10_us), format_us(r.p90_us)),
            format_with_prefix(r.tokens_per_s(), ""),
            format_number(r.gflops_per_s()),
            format_number(r.gbytes_per_s()),
            format_us(r.floor_us),
            r.memory_bound() ? "memory" : "compute",
            format_fraction(r.fraction_of_floor()),
            format_fraction(r.fraction_of_matmul()),
            format_us(r.h200_floor_us),
            fmt::format("{:.2f}", r.peak_memory_ratio()),
            r.model};
}

std::vector<Curves> charts_of(std::span<const Record> records) {
    std::vector<Curves> charts;
    for (const Record& r : records) {
        if (!r.ran() || r.phase != Phase::kPrefill) continue;
        const std::string title =
            fmt::format("{}, {}, {}", describe_curve_shape(r), to_string(r.dtype), r.device.name);
        auto chart = std::find_if(charts.begin(), charts.end(),
                                  [&](const Curves& c) { return c.title == title; });
        if (chart == charts.end()) chart = charts.insert(chart, {title, {}});
        const std::string name = describe_kernel(r);
        auto line = std::find_if(chart->lines.begin(), chart->lines.end(),
                                 [&](const auto& l) { return l.first == name; });
        if (line == chart->lines.end()) line = chart->lines.insert(line, {name, {}});
        line->second.emplace_back(static_cast<double>(r.dims.T), r.measured_us);
    }
    for (Curves& chart : charts) {
        for (auto& [name, points] : chart.lines) std::sort(points.begin(), points.end());
    }
    // A curve needs two points.
    std::erase_if(charts, [](const Curves& chart) {
        return std::none_of(chart.lines.begin(), chart.lines.end(),
                            [](const auto& line) { return line.second.size() > 1; });
    });
    return charts;
}

}  // namespace

Report make_report(std::span<const Record> records) {
    if (records.empty()) {
        throw Error(ErrorCode::kValue, "records", "none", "at least one record");
    }
    Report report;
    report.provenance = provenance_of(records);
    report.headers = {
        "op",           "phase",      "backend, kernel", "shape",     "dtype",
        "median",       "p10 to p90", "tokens/s",        "GFLOP/s",   "GB/s",
        "floor",        "bound by",   "of floor",        "of matmul", "H200 floor (bf16 rate)",
        "memory ratio", "model"};
    for (const Record& r : records) {
        add_once(report.commands, r.command);
        if (r.ran()) {
            report.rows.push_back(cells(r));
        } else {
            report.skipped.push_back(fmt::format("{} {} {} {}, {}: {}", r.op, to_string(r.phase),
                                                 r.backend, describe_shape(r), to_string(r.dtype),
                                                 r.skipped));
        }
    }
    report.verdicts = {{"Against softmax attention", verdicts_against_softmax(records)},
                       {"What bounds it, and how far it is from that", verdicts_by_op(records)},
                       {"How far to trust the numbers", verdicts_on_noise(records)}};
    report.charts = charts_of(records);
    return report;
}

namespace {

std::string markdown_row(const std::vector<std::string>& cells) {
    std::string line = "|";
    for (std::string cell : cells) {
        for (std::size_t at = 0; (at = cell.find('|', at)) != std::string::npos; at += 2) {
            cell.insert(at, "\\");
        }
        line += " " + cell + " |";
    }
    return line + "\n";
}

std::string markdown_list(const std::string& title, const std::vector<std::string>& items) {
    if (items.empty()) return "";
    std::string text = fmt::format("\n## {}\n\n", title);
    for (const std::string& item : items) text += "- " + item + "\n";
    return text;
}

}  // namespace

std::string to_markdown(const Report& report) {
    std::string text = "# Benchmark report\n\n";
    for (const std::string& line : report.provenance) text += "- " + line + "\n";
    if (!report.commands.empty()) {
        text += "\n```\n";
        for (const std::string& command : report.commands) text += command + "\n";
        text += "```\n";
    }
    for (const ReportSection& section : report.verdicts) {
        text += markdown_list(section.title, section.sentences);
    }
    if (!report.rows.empty()) {
        text += "\n## Rows\n\n" + markdown_row(report.headers);
        text += markdown_row(std::vector<std::string>(report.headers.size(), "---"));
        for (const auto& row : report.rows) text += markdown_row(row);
    }
    text += markdown_list("Not measured", report.skipped);
    return text;
}

}  // namespace sluice::measure
