// sluice: run, verify, bench, report, info.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "sluice/error.hpp"

namespace {

/// One line on standard error, or an object on standard output with --json.
int refuse(const sluice::cli::Context& context, const std::exception& problem) {
    const auto* error = dynamic_cast<const sluice::Error*>(&problem);
    if (context.json) {
        nlohmann::json object = {{"error", problem.what()}};
        if (error != nullptr) {
            object["code"] = sluice::to_string(error->code());
            object["argument"] = error->argument();
            object["value"] = error->value();
            object["accepted"] = error->accepted();
        }
        fmt::print("{}\n", object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    } else {
        fmt::print(stderr, "sluice: {}\n", problem.what());
    }
    return 2;
}

}  // namespace

int main(int argc, char** argv) {
    sluice::cli::Context context;
    CLI::App program{"Recurrent-state (\"linear\") attention: run it, verify it, measure it."};
    program.name("sluice");
    program.require_subcommand(1);
    program.footer(
        "sluice COMMAND --help explains a command.\n"
        "Exit status: 0 success, 1 a check failed, 2 refused input or usage.");
    sluice::cli::add_run(program, context);
    sluice::cli::add_verify(program, context);
    sluice::cli::add_bench(program, context);
    sluice::cli::add_report(program, context);
    sluice::cli::add_info(program, context);
    try {
        program.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return program.exit(error) == 0 ? 0 : 2;
    } catch (const std::exception& error) {
        return refuse(context, error);
    }
    return context.status;
}
