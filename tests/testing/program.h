// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TESTING_PROGRAM_H_
#define DELTAEDGE_TESTS_TESTING_PROGRAM_H_

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace deltaedge::testing {

// How a program is started. Its environment is this test's without Bazel's
// BUILD_WORKING_DIRECTORY.
struct Launch {
  std::string path;                      // Of the file to run.
  std::vector<std::string> args;         // Without the program's name.
  std::string name;                      // argv[0]; empty: `path`.
  std::string folder;                    // Where it starts; empty: here.
  std::vector<std::string> environment;  // NAME=value; NAME alone: unset.

  // All of the three on one pseudo-terminal, what they say arrives in out().
  bool terminal = false;
  // Files instead of pipes, if not empty; "closed" for none at all.
  std::string input_file, output_file;
  std::vector<int> ignored;    // Signals; others end it unless it handles them.
  int64_t max_file_bytes = 0;  // That a file may grow to; 0: as here.

  // Of everything that waits for it, from its start.
  std::chrono::seconds patience = std::chrono::seconds(60);
};

// A program under test. Whatever waits gives up when there is no patience left,
// ends the program and fails the test: a hang is a failure. Not thread-safe.
class Program {
 public:
  explicit Program(const Launch& launch);
  ~Program();  // Ends it if it still runs.
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Types or pipes `text`; returns when the program, or the kernel for it, has
  // taken all. What the program says meanwhile is kept.
  void Write(const std::string& text);
  void CloseInput();
  // Reads no more of its output, as `head` does.
  void CloseOutput();
  void Signal(int signal);

  // Waits until its output, or its errors, hold `text` behind what the last
  // such wait found.
  void WaitForOut(const std::string& text);
  void WaitForErr(const std::string& text);

  // Waits, reading nothing, until its output holds all that it can take.
  void WaitForFullOut();

  // Ends its input and waits until it has left. Its exit status, or the
  // negative number of the signal that ended it.
  int Wait();

  const std::string& out() const { return out_.text; }
  const std::string& err() const { return err_.text; }

 private:
  struct Stream {
    int fd = -1;
    std::string text;
    size_t seen = 0;
  };

  void WaitFor(Stream* stream, const std::string& text);
  // Reads what there is, waiting a while for some or for room to write. False
  // once the time is up.
  bool Pump(bool for_writing);
  void Drain(Stream* stream);
  void GiveUp(const std::string& what);

  const std::chrono::steady_clock::time_point deadline_;
  pid_t pid_ = -1;
  int input_ = -1;
  Stream out_, err_;
  bool reaped_ = false;
  int status_ = 0;
};

// What a program did that was given `input` and then its end.
struct Outcome {
  int status = 0;
  std::string out, err;
};
Outcome RunToEnd(const Launch& launch, const std::string& input = "");

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_TESTING_PROGRAM_H_
