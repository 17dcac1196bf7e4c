// Numbers as people read them: three digits and a unit.
#pragma once

#include <string>

namespace sluice::measure {

[[nodiscard]] std::string format_us(double microseconds);  // "12.3 us", "1.24 ms", "2 min 5 s"
[[nodiscard]] std::string format_number(double value);     // "0.123", "12.3", "1230"
/// With a prefix (powers of ten): ("B", 1.5e6) is "1.50 MB", ("", 1.5e6) is "1.50 M".
[[nodiscard]] std::string format_with_prefix(double value, const char* unit);
[[nodiscard]] std::string format_fraction(double fraction);  // "37 %", "0.3 %", "-" for 0

}  // namespace sluice::measure
