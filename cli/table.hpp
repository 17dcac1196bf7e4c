// Text tables: columns as wide as their widest cell.
#pragma once

#include <string>
#include <vector>

namespace sluice::cli {

class Table {
  public:
    /// A header that begins with '<' aligns its column to the left; others to the right.
    explicit Table(std::vector<std::string> headers);
    void add(std::vector<std::string> cells);
    /// Lines that end in '\n': the headers, a rule, the rows. Columns of empty cells are left out.
    [[nodiscard]] std::string to_string() const;

  private:
    std::vector<std::string> headers_;
    std::vector<bool> left_;
    std::vector<std::vector<std::string>> rows_;
};

}  // namespace sluice::cli
