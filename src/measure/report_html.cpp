// The report as one HTML file.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "measure/report.hpp"
#include "measure/units.hpp"

namespace sluice::measure {

namespace {

constexpr double kWidth = 860, kHeight = 420;
constexpr double kLeft = 80, kRight = 230, kTop = 20, kBottom = 50;
// Okabe and Ito: told apart by the colour-blind.
constexpr std::array kColors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                "#e69f00", "#56b4e9", "#000000", "#8a8a00"};

/// A logarithmic axis, from values to positions.
class LogAxis {
  public:
    LogAxis(double from, double to) : from_(from), to_(to) {}
    void include(double value) {
        low_ = std::min(low_, value);
        high_ = std::max(high_, value);
    }
    /// Widens to whole decades.
    void round_to_decades() {
        low_ = std::pow(10, std::floor(std::log10(low_)));
        high_ = std::pow(10, std::ceil(std::log10(high_)));
    }
    [[nodiscard]] double at(double value) const {
        if (low_ >= high_) return (from_ + to_) / 2;
        return std::lerp(from_, to_, std::log(value / low_) / std::log(high_ / low_));
    }
    [[nodiscard]] double low() const { return low_; }
    [[nodiscard]] double high() const { return high_; }

  private:
    double from_, to_;
    double low_ = std::numeric_limits<double>::infinity();
    double high_ = 0;
};

/// Has a place on a logarithmic axis, whose decades can be counted.
bool is_plottable(double value) { return value >= 1e-30 && value <= 1e30; }

std::string svg_line(double x1, double y1, double x2, double y2, const char* color) {
    return fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1,
        x2, y2, color);
}

std::string svg_text(double x, double y, const char* anchor, const std::string& text) {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y,
                       anchor, escape_html(text));
}

std::string grid(const LogAxis& x, const LogAxis& y, const std::set<double>& lengths) {
    constexpr double kBase = kHeight - kBottom, kEnd = kWidth - kRight;
    std::string svg;
    const auto lowest = std::lround(std::log10(y.low())),
               highest = std::lround(std::log10(y.high()));
    for (auto exponent = lowest; exponent <= highest; ++exponent) {
        const double decade = std::pow(10, exponent);
        svg += svg_line(kLeft, y.at(decade), kEnd, y.at(decade), "#ddd");
        svg += svg_text(kLeft - 8, y.at(decade) + 4, "end", format_us(decade));
    }
    for (const double tokens : lengths) {
        svg += svg_line(x.at(tokens), kTop, x.at(tokens), kBase, "#eee");
        svg += svg_text(x.at(tokens), kBase + 18, "middle", fmt::format("{:.0f}", tokens));
    }
    svg +=
        svg_line(kLeft, kBase, kEnd, kBase, "#333") + svg_line(kLeft, kTop, kLeft, kBase, "#333");
    return svg + svg_text((kLeft + kEnd) / 2, kHeight - 10, "middle", "T, tokens per sequence");
}

std::string curve(const LogAxis& x, const LogAxis& y,
                  const std::vector<std::pair<double, double>>& points, const char* color) {
    std::string path, dots;
    for (const auto& [tokens, us] : points) {
        if (!is_plottable(tokens) || !is_plottable(us)) continue;
        path += fmt::format("{:.1f},{:.1f} ", x.at(tokens), y.at(us));
        dots += fmt::format(
            "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>T {:.0f}: "
            "{}</title></circle>\n",
            x.at(tokens), y.at(us), color, tokens, format_us(us));
    }
    return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n",
                       path, color) +
           dots;
}

std::string html_list(const std::string& title, const std::vector<std::string>& items) {
    if (items.empty()) return "";
    std::string html = fmt::format("<h2>{}</h2>\n<ul>\n", escape_html(title));
    for (const std::string& item : items) html += "<li>" + escape_html(item) + "</li>\n";
    return html + "</ul>\n";
}

std::string html_row(const std::vector<std::string>& cells, const char* tag) {
    std::string html = "<tr>";
    for (const std::string& cell : cells) {
        html += fmt::format("<{0}>{1}</{0}>", tag, escape_html(cell));
    }
    return html + "</tr>\n";
}

constexpr const char* kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em;"
    "color:#222}\n"
    "table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}\n"
    "th,td{border-bottom:1px solid #ddd;padding:.3em .6em;text-align:left;white-space:nowrap}\n"
    "pre{background:#f5f5f5;padding:.7em;overflow-x:auto}\n"
    "svg{font:12px system-ui,sans-serif;max-width:100%;height:auto}\n";

}  // namespace

std::string escape_html(const std::string& text) {
    std::string escaped;
    for (const char c : text) {
        switch (c) {
            case '&': escaped += "&amp;"; break;
            case '<': escaped += "&lt;"; break;
            case '>': escaped += "&gt;"; break;
            case '"': escaped += "&quot;"; break;
            default: escaped += c;
        }
    }
    return escaped;
}

std::string to_svg(const Curves& curves) {
    LogAxis x(kLeft + 10, kWidth - kRight - 10), y(kHeight - kBottom, kTop);
    std::set<double> lengths;
    for (const auto& [name, points] : curves.lines) {
        for (const auto& [tokens, us] : points) {
            if (!is_plottable(tokens) || !is_plottable(us)) continue;
            lengths.insert(tokens);
            x.include(tokens);
            y.include(us);
        }
    }
    std::string svg = fmt::format(
        "<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
        "aria-label=\"{2}\">\n",
        kWidth, kHeight, escape_html("latency against T, " + curves.title));
    if (lengths.empty()) return svg + "</svg>\n";
    y.round_to_decades();
    svg += grid(x, y, lengths);
    double legend_y = kTop + 10;
    for (std::size_t i = 0; i < curves.lines.size(); ++i) {
        const auto& [name, points] = curves.lines[i];
        const char* color = kColors[i % kColors.size()];
        svg += curve(x, y, points, color);
        svg +=
            fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"4\" fill=\"{}\"/>\n",
                        kWidth - kRight + 16, legend_y - 6, color);
        svg += svg_text(kWidth - kRight + 36, legend_y, "start", name);
        legend_y += 18;
    }
    return svg + "</svg>\n";
}

std::string to_html(const Report& report) {
    std::string html =
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<title>Benchmark report</title>\n<style>\n";
    html += kStyle;
    html += "</style>\n</head>\n<body>\n<h1>Benchmark report</h1>\n<ul>\n";
    for (const std::string& line : report.provenance) {
        html += "<li>" + escape_html(line) + "</li>\n";
    }
    html += "</ul>\n";
    if (!report.commands.empty()) {
        html += "<pre>";
        for (const std::string& command : report.commands) html += escape_html(command) + "\n";
        html += "</pre>\n";
    }
    for (const ReportSection& section : report.verdicts) {
        html += html_list(section.title, section.sentences);
    }
    if (!report.charts.empty()) html += "<h2>Latency against T</h2>\n";
    for (const Curves& chart : report.charts) {
        html += "<figure>\n<figcaption>" + escape_html(chart.title) + "</figcaption>\n" +
                to_svg(chart) + "</figure>\n";
    }
    if (!report.rows.empty()) {
        html += "<h2>Rows</h2>\n<table>\n<thead>" + html_row(report.headers, "th") +
                "</thead>\n<tbody>\n";
        for (const auto& row : report.rows) html += html_row(row, "td");
        html += "</tbody>\n</table>\n";
    }
    html += html_list("Not measured", report.skipped);
    return html + "</body>\n</html>\n";
}

}  // namespace sluice::measure
