#include "cli/table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::cli {

Table::Table(std::vector<std::string> headers) : headers_(std::move(headers)) {
    for (std::string& header : headers_) {
        left_.push_back(header.starts_with('<'));
        if (left_.back()) header.erase(0, 1);
    }
}

void Table::add(std::vector<std::string> cells) {
    cells.resize(headers_.size());
    rows_.push_back(std::move(cells));
}

std::string Table::to_string() const {
    std::vector<std::size_t> widths(headers_.size(), 0);
    for (std::size_t c = 0; c < headers_.size(); ++c) {
        for (const auto& row : rows_) widths[c] = std::max(widths[c], row[c].size());
        if (widths[c] > 0) widths[c] = std::max(widths[c], headers_[c].size());
    }
    std::string text;
    const auto add_line = [&](const std::vector<std::string>& cells) {
        std::string line;
        for (std::size_t c = 0; c < cells.size(); ++c) {
            if (widths[c] == 0) continue;
            line += line.empty() ? "" : "  ";
            line += left_[c] ? fmt::format("{:<{}}", cells[c], widths[c])
                             : fmt::format("{:>{}}", cells[c], widths[c]);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + "\n";
    };
    add_line(headers_);
    std::vector<std::string> rule;
    rule.reserve(widths.size());
    for (const std::size_t width : widths) rule.emplace_back(width, '-');
    add_line(rule);
    for (const auto& row : rows_) add_line(row);
    return text;
}

}  // namespace sluice::cli
