// SPDX-License-Identifier: Apache-2.0
//
// The command line of shardctl: commands, their options, and the functions that
// they run.
//
// Each file of commands/ adds its command to the CommandLine and binds options
// to variables. CommandLine::Run sets the variables of the command that was
// given, and runs its body. A body prints its result on stdout and returns an
// exit code; it throws Failure for everything that keeps it from a result.
//
// CLI11 parses. Only command.cc includes its header, which takes the compiler
// longer than a whole command does. Threads: one.

#ifndef SHARD_SDK_CLI_COMMAND_H_
#define SHARD_SDK_CLI_COMMAND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shardctl {

// The exit codes of shardctl. `run` also returns those of its ranks.
enum ExitCode : int {
  kFine = 0,
  kDifferent = 1,  // A check failed, or two things differ.
  kUsage = 2,
  kFailed = 3,
};

// An option or a positional argument of a command. An Option is a handle:
// copies refer to the same option, which the CommandLine owns. Each function
// returns the option.
class Option {
 public:
  // Makes the option required: the command does not run without it.
  Option Required();
  // Shows in help texts the value that the variable has now.
  Option ShowDefault();

  // Check each value. A value that fails a check is a wrong use.
  Option OneOf(const std::vector<std::string>& values);
  Option Between(int32_t least, int32_t most);
  // Check for a number above 0, or of at least 0, that is neither nan nor inf.
  Option Positive();
  Option NonNegative();
  Option ExistingPath();
  // Checks with `check`, which returns the fault of a value, or "".
  Option Check(std::function<std::string(const std::string&)> check);

 private:
  friend class Command;
  explicit Option(CLI::Option* option) : option_(option) {}

  CLI::Option* option_;
};

// A command of the CommandLine, which owns it. A handle, as Option is.
class Command {
 public:
  // Adds an option with `names` such as "-n,--ranks", or the next positional
  // argument when the name has no dash. CommandLine::Run sets *value, which has
  // the default until then. REQUIRES: `value` lives as long as the body.
  Option AddOption(const std::string& names, std::string* value,
                   const std::string& description);
  Option AddOption(const std::string& names, int32_t* value,
                   const std::string& description);
  Option AddOption(const std::string& names, double* value,
                   const std::string& description);
  // Adds an option for numbers separated by commas.
  Option AddOption(const std::string& names, std::vector<int32_t>* values,
                   const std::string& description);
  // Adds an option for one value each time that it is given. A positional
  // argument takes all that are left.
  Option AddOption(const std::string& names, std::vector<std::string>* values,
                   const std::string& description);
  // Adds an option without a value, which sets *value to true.
  void AddFlag(const std::string& names, bool* value,
               const std::string& description);

  // Leaves the command out of the list of commands.
  void Hide();

  // Takes everything from the first positional argument on as positional,
  // options too.
  void EndOptionsAtPositionals();

  // Returns true when the command line has the option `name`, "--ranks", with
  // whatever value. REQUIRES: a body runs, and the command has the option.
  bool WasGiven(const std::string& name) const;

  // Sets the function that the command runs.
  void Runs(std::function<int()> body);

 private:
  friend class CommandLine;
  Command(CLI::App* app, std::function<int()>* chosen)
      : app_(app), chosen_(chosen) {}

  CLI::App* app_;
  std::function<int()>* chosen_;  // The body of the command that was given.
};

class CommandLine {
 public:
  // `help` is shown below the list of commands, and a command's help below its
  // options. --version prints `version`.
  CommandLine(const std::string& name, const std::string& description,
              const std::string& help, const std::string& version);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  Command AddCommand(const std::string& name, const std::string& description,
                     const std::string& help);

  // Parses the arguments of main(), runs the command that was given, and
  // returns the exit code. Prints help when asked to, and what is wrong with
  // the arguments on stderr. Throws what the command's body throws, and Failure
  // when stdout does not take the help.
  int Run(int argc, char** argv);

 private:
  const std::unique_ptr<CLI::App> app_;
  std::function<int()> chosen_;
};

// Add the commands that they are named after.
void AddAgent(CommandLine* line);
void AddDiff(CommandLine* line);
void AddDoctor(CommandLine* line);
void AddImport(CommandLine* line);
void AddInspect(CommandLine* line);
void AddMerge(CommandLine* line);
void AddPlan(CommandLine* line);
void AddReport(CommandLine* line);
void AddReshard(CommandLine* line);
void AddRun(CommandLine* line);
void AddTriage(CommandLine* line);
void AddVerify(CommandLine* line);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMAND_H_
