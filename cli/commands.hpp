// The subcommands of `sluice`. Each lives in cli/<name>.cpp, adds itself to the program and leaves
// its exit status in `status`.
#pragma once

#include <CLI/CLI.hpp>

namespace sluice::cli {

/// Exit codes: 0 success, 1 a check failed (verify past tolerance), 2 refused input or usage.
struct Context {
    int status = 0;
    bool json = false;  // --json: results and errors as JSON on standard output
};

void add_run(CLI::App& program, Context& context);
void add_verify(CLI::App& program, Context& context);
void add_bench(CLI::App& program, Context& context);
void add_report(CLI::App& program, Context& context);
void add_info(CLI::App& program, Context& context);

}  // namespace sluice::cli
