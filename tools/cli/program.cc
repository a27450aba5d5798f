// SPDX-License-Identifier: Apache-2.0

#include "tools/cli/program.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/log.h"

namespace deltaedge {

namespace {

bool IsOfTools(absl::string_view file) {
  return absl::StrContains(file, "tools/");
}

void PrintHelp(absl::string_view usage) {
  std::map<absl::string_view, const absl::CommandLineFlag*> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (IsOfTools(flag->Filename())) flags.emplace(name, flag);
  }
  absl::PrintF("%s\n", usage);
  for (const auto& [name, flag] : flags) {
    const std::string value = flag->DefaultValue();
    absl::PrintF("  --%s%s\n      %s\n", name,
                 value.empty() ? "" : absl::StrCat("=", value), flag->Help());
  }
}

}  // namespace

std::vector<char*> StartProgram(int argc, char** argv,
                                absl::string_view usage) {
  // Empty, the standard library would take it for a folder's name.
  const char* const temporary = std::getenv("TMPDIR");
  if (temporary != nullptr && *temporary == '\0') unsetenv("TMPDIR");
  for (int i = 1; i < argc; ++i) {
    const absl::string_view word = argv[i];
    if (word != "--help" && word != "-help" && word != "-h") continue;
    // Abseil's own help counts as a failure.
    PrintHelp(usage);
    std::exit(std::fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
  }
  absl::SetProgramUsageMessage(usage);
  absl::FlagsUsageConfig config;
  config.contains_helpshort_flags = IsOfTools;
  config.contains_help_flags = IsOfTools;
  config.contains_helppackage_flags = IsOfTools;
  absl::SetFlagsUsageConfig(config);
  // Once what is said of each of several engines or pools.
  SetLogSink([last = std::string()](LogLevel level,
                                    absl::string_view message) mutable {
    if (level != LogLevel::kWarning || message == last) return;
    last = std::string(message);
    absl::FPrintF(stderr, "warning: %s\n", message);
  });
  return absl::ParseCommandLine(argc, argv);
}

int EndProgram(const absl::Status& status) {
  // A pipe that closed or a disk that is full is a failure too.
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (status.ok() && written) return EXIT_SUCCESS;
  absl::FPrintF(
      stderr, "error: %s\n",
      status.ok() ? "standard output cannot be written" : status.message());
  return EXIT_FAILURE;
}

}  // namespace deltaedge
