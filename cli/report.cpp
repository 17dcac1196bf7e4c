// sluice report: from records to a document.
#include "measure/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/failure.hpp"
#include "core/file.hpp"
#include "sluice/error.hpp"
#include "sluice/record.hpp"

namespace sluice::cli {

namespace {

struct ReportCommand {
    std::vector<std::string> inputs;
    std::string output;
};

bool is_html(const std::string& path) {
    const std::string extension = std::filesystem::path(path).extension().string();
    if (extension == ".html" || extension == ".htm") return true;
    if (extension == ".md" || path.empty()) return false;
    throw Error(ErrorCode::kFile, "output", path, "a path that ends in .md or .html");
}

/// What was written and where to; the document itself where it went nowhere.
nlohmann::ordered_json summary(const ReportCommand& command, const measure::Report& report,
                               const std::string& text) {
    nlohmann::ordered_json object = {{"records", command.inputs},
                                     {"rows", report.rows.size()},
                                     {"skipped", report.skipped.size()},
                                     {"charts", report.charts.size()},
                                     {"verdicts", nlohmann::ordered_json::array()}};
    for (const measure::ReportSection& section : report.verdicts) {
        for (const std::string& sentence : section.sentences) {
            object["verdicts"].push_back(sentence);
        }
    }
    object["format"] = is_html(command.output) ? "html" : "markdown";
    object["bytes"] = text.size();
    if (command.output.empty()) {
        object["document"] = text;
    } else {
        object["output"] = command.output;
    }
    return object;
}

void run(const ReportCommand& command, const Context& context) {
    const bool html = is_html(command.output);
    std::vector<Record> records;
    for (const std::string& path : command.inputs) {
        std::vector<Record> more = read_records(path);
        std::move(more.begin(), more.end(), std::back_inserter(records));
    }
    const measure::Report report = measure::make_report(records);
    const std::string text = html ? measure::to_html(report) : measure::to_markdown(report);
    if (!command.output.empty()) write_text(command.output, text);
    if (context.json) {
        fmt::print("{}", json_text(summary(command, report, text)));
    } else if (command.output.empty()) {
        fmt::print("{}", text);
    }
}

constexpr const char* kFooter =
    "Reads records only: nothing is measured. The report states device, date, commit and command,\n"
    "says which rows are bound by memory or by arithmetic, how far from the floor they are, from\n"
    "which T on an op is faster than softmax attention, and the same shapes' floors on an H200.\n"
    "\n"
    "Examples:\n"
    "  sluice bench --op gla,softmax -T 512,1024,2048,4096 --output records.json\n"
    "  sluice report records.json                      Markdown on standard output\n"
    "  sluice report a.json b.json -o report.html      one file, with charts";

}  // namespace

void add_report(CLI::App& program, Context& context) {
    auto command = std::make_shared<ReportCommand>();
    CLI::App& app = *program.add_subcommand("report", "Turn records into a document with verdicts");
    app.add_option("records", command->inputs, "Files that `sluice bench --output` wrote")
        ->required()
        ->type_name("FILE...");
    app.add_option("-o,--output", command->output, "report.md or report.html (standard output)")
        ->type_name("FILE");
    app.add_flag("--json", context.json, "Print what was written as a JSON object");
    app.footer(kFooter);
    app.callback([command, &context] { run(*command, context); });
}

}  // namespace sluice::cli
