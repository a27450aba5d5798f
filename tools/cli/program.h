// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CLI_PROGRAM_H_
#define DELTAEDGE_TOOLS_CLI_PROGRAM_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace deltaedge {

// How every tool begins and ends.

// Sets the flags that the command line names, sends the library's warnings to
// standard error, and takes an empty $TMPDIR for none. What is left of the
// command line, the program's name first. Ends the program where a flag does
// not exist or cannot be read, and, as a success, after --help: `usage`, which
// says what the program does, and the flags that tools define.
std::vector<char*> StartProgram(int argc, char** argv, absl::string_view usage);

// The exit status that stands for `status`. An error is told on standard error,
// and one more: that standard output could not be written.
int EndProgram(const absl::Status& status);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CLI_PROGRAM_H_
