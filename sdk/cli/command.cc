// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/command.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <utility>

#include "sdk/cli/text.h"

namespace shardctl {

namespace {

// CLI::PositiveNumber and CLI::NonNegativeNumber take nan, and when they refuse
// a number they print the largest double, in 309 digits.
CLI::Validator FiniteNumber(bool (*is_allowed)(double), const char* allowed,
                            const char* type) {
  return CLI::Validator(
      [=](const std::string& text) {
        double number = 0;
        if (CLI::detail::lexical_cast(text, number) && std::isfinite(number) &&
            is_allowed(number)) {
          return std::string();
        }
        return "'" + text + "' is no number " + allowed;
      },
      type);
}

// Returns what is wrong with the arguments, for which command, and where its
// help is. CLI11's own text names neither the command nor a misspelt one.
std::string UsageError(const CLI::App* app, const CLI::Error& error) {
  std::string name = app->get_name();
  std::string problem = error.what();
  const std::vector<CLI::App*> given = app->get_subcommands();
  const std::vector<std::string> unknown = app->remaining();
  if (!given.empty()) {
    name += " " + given.front()->get_name();
  } else if (unknown.empty()) {
    problem = "a command is required";
  } else {
    problem = "'" + unknown.front() + "' is no command";
  }
  return name + ": " + problem + "; see " + name + " --help\n";
}

}  // namespace

Option Option::Required() {
  option_->required();
  return *this;
}

Option Option::ShowDefault() {
  option_->capture_default_str();
  return *this;
}

Option Option::OneOf(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return *this;
}

Option Option::Between(int32_t least, int32_t most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Option Option::Positive() {
  option_->check(FiniteNumber([](double number) { return number > 0; },
                              "above 0", "POSITIVE"));
  return *this;
}

Option Option::NonNegative() {
  option_->check(FiniteNumber([](double number) { return number >= 0; },
                              "of 0 or more", "NONNEGATIVE"));
  return *this;
}

Option Option::ExistingPath() {
  option_->check(CLI::ExistingPath);
  return *this;
}

Option Option::Check(std::function<std::string(const std::string&)> check) {
  option_->check(std::move(check));
  return *this;
}

Option Command::AddOption(const std::string& names, std::string* value,
                          const std::string& description) {
  return Option(app_->add_option(names, *value, description));
}

Option Command::AddOption(const std::string& names, int32_t* value,
                          const std::string& description) {
  return Option(app_->add_option(names, *value, description));
}

Option Command::AddOption(const std::string& names, double* value,
                          const std::string& description) {
  return Option(app_->add_option(names, *value, description));
}

Option Command::AddOption(const std::string& names,
                          std::vector<int32_t>* values,
                          const std::string& description) {
  CLI::Option* const option = app_->add_option(names, *values, description);
  option->delimiter(',')->allow_extra_args(false);
  return Option(option);
}

Option Command::AddOption(const std::string& names,
                          std::vector<std::string>* values,
                          const std::string& description) {
  CLI::Option* const option = app_->add_option(names, *values, description);
  option->allow_extra_args(option->get_positional());
  return Option(option);
}

void Command::AddFlag(const std::string& names, bool* value,
                      const std::string& description) {
  app_->add_flag(names, *value, description);
}

void Command::Hide() { app_->group(""); }

void Command::EndOptionsAtPositionals() { app_->positionals_at_end(); }

bool Command::WasGiven(const std::string& name) const {
  return app_->count(name) > 0;
}

void Command::Runs(std::function<int()> body) {
  app_->callback(
      [body = std::move(body), chosen = chosen_] { *chosen = body; });
}

CommandLine::CommandLine(const std::string& name,
                         const std::string& description,
                         const std::string& help, const std::string& version)
    : app_(std::make_unique<CLI::App>(description, name)) {
  app_->set_version_flag("--version", version);
  app_->footer(help);
  app_->require_subcommand(1);
  app_->failure_message(UsageError);
}

CommandLine::~CommandLine() = default;

Command CommandLine::AddCommand(const std::string& name,
                                const std::string& description,
                                const std::string& help) {
  CLI::App* const command = app_->add_subcommand(name, description);
  command->footer(help);
  return Command(command, &chosen_);
}

int CommandLine::Run(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream err;
    const bool asked_for_help = app_->exit(error, out, err) == 0;
    std::fputs(err.str().c_str(), stderr);
    PrintText(out.str());
    return asked_for_help ? kFine : kUsage;
  }
  return chosen_();
}

}  // namespace shardctl
