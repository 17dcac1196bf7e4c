// A report from records alone: where they come from, the table, and what the numbers say.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sluice/record.hpp"

namespace sluice::measure {

struct Curves {
    std::string title;  // the shape that the curves share
    std::vector<std::pair<std::string, std::vector<std::pair<double, double>>>> lines;
};

struct ReportSection {
    std::string title;
    std::vector<std::string> sentences;
};

/// Plain text throughout; the writers below escape it.
struct Report {
    std::vector<std::string> provenance;  // device, rates, date, version and commit
    std::vector<std::string> commands;    // that made the records
    std::vector<std::string> headers;
    std::vector<std::vector<std::string>> rows;
    std::vector<ReportSection> verdicts;
    std::vector<std::string> skipped;
    std::vector<Curves> charts;  // latency in microseconds against T
};

/// Throws Error(kValue) without records.
[[nodiscard]] Report make_report(std::span<const Record> records);

[[nodiscard]] std::string to_markdown(const Report& report);
/// One file: style and charts (SVG) inside, nothing fetched.
[[nodiscard]] std::string to_html(const Report& report);

/// An SVG element: a log-log chart with a legend.
[[nodiscard]] std::string to_svg(const Curves& curves);

/// Text with & < > " as HTML entities.
[[nodiscard]] std::string escape_html(const std::string& text);

}  // namespace sluice::measure
