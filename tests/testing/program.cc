// SPDX-License-Identifier: Apache-2.0

#include "tests/testing/program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "gtest/gtest.h"
#include "tests/testing/emulated.h"

extern char** environ;

namespace deltaedge::testing {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::string> Environment(const std::vector<std::string>& changes) {
  std::vector<std::string> all;
  const auto name = [](const std::string& entry) {
    return entry.substr(0, entry.find('='));
  };
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const bool replaced = std::any_of(
        changes.begin(), changes.end(),
        [&](const auto& change) { return name(change) == name(*entry); });
    if (!replaced && name(*entry) != "BUILD_WORKING_DIRECTORY") {
      all.push_back(*entry);
    }
  }
  for (const std::string& change : changes) {
    if (change.find('=') != std::string::npos) all.push_back(change);
  }
  return all;
}

std::vector<char*> Pointers(std::vector<std::string>* words) {
  std::vector<char*> pointers;
  for (std::string& word : *words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

void Close(int* fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

struct Pipe {
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) == 0) {
      read = ends[0];
      write = ends[1];
    }
  }
  int read = -1, write = -1;
};

// For the child: makes `fd`, or the file, its `number`.
void Wire(int fd, const std::string& file, int flags, int number) {
  if (file == "closed") {
    close(number);
    return;
  }
  if (!file.empty()) fd = open(file.c_str(), flags);
  if (fd < 0 || dup2(fd, number) < 0) _exit(126);
}

}  // namespace

Program::Program(const Launch& launch)
    : deadline_(Clock::now() + launch.patience * (Emulated() ? 10 : 1)) {
  signal(SIGPIPE, SIG_IGN);
  std::vector<std::string> args = launch.args;
  args.insert(args.begin(), launch.name.empty() ? launch.path : launch.name);
  std::vector<std::string> environment = Environment(launch.environment);
  std::string path = launch.path;
  if (const char* emulate = getenv("DELTAEDGE_EMULATE")) {
    // tools/toolchain/emulate.sh PROGRAM ARGUMENTS...
    environment.push_back("QEMU_ARGV0=" + args[0]);
    args[0] = launch.path;
    path = emulate;
    args.insert(args.begin(), path);
  }
  const std::vector<char*> argv = Pointers(&args);
  const std::vector<char*> envp = Pointers(&environment);

  int terminal = -1;
  std::string terminal_name;
  Pipe in, out, err;
  if (launch.terminal) {
    terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) {
      ADD_FAILURE() << "no pseudo-terminal: " << strerror(errno);
      return;
    }
    terminal_name = ptsname(terminal);
  }
  // A program that goes on writing is to wait for its reader soon.
  if (out.write >= 0) fcntl(out.write, F_SETPIPE_SZ, 4096);
  pid_ = fork();
  if (pid_ == 0) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
      signal(number, SIG_DFL);
    }
    for (const int number : launch.ignored) signal(number, SIG_IGN);
    if (launch.max_file_bytes > 0) {
      rlimit limit;
      getrlimit(RLIMIT_FSIZE, &limit);
      limit.rlim_cur = static_cast<rlim_t>(launch.max_file_bytes);
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    if (launch.terminal) {
      setsid();
      const int side = open(terminal_name.c_str(), O_RDWR);
      if (side < 0 || ioctl(side, TIOCSCTTY, 0) != 0) _exit(126);
      for (int number = 0; number < 3; ++number) dup2(side, number);
      if (side > 2) close(side);
    } else {
      Wire(in.read, launch.input_file, O_RDONLY, STDIN_FILENO);
      Wire(out.write, launch.output_file, O_WRONLY, STDOUT_FILENO);
      Wire(err.write, "", 0, STDERR_FILENO);
    }
    if (!launch.folder.empty() && chdir(launch.folder.c_str()) != 0) _exit(126);
    execve(path.c_str(), argv.data(), envp.data());
    _exit(127);
  }
  close(in.read);
  close(out.write);
  close(err.write);
  if (launch.terminal) {
    close(in.write);
    close(out.read);
    close(err.read);
    input_ = dup(terminal);
    out_.fd = terminal;
  } else {
    input_ = in.write;
    out_.fd = out.read;
    err_.fd = err.read;
  }
  for (int fd : {input_, out_.fd, err_.fd}) {
    if (fd >= 0) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  EXPECT_GT(pid_, 0);
}

Program::~Program() {
  if (!reaped_ && pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Close(&input_);
  Close(&out_.fd);
  Close(&err_.fd);
}

void Program::Write(const std::string& text) {
  size_t done = 0;
  while (done < text.size() && input_ >= 0) {
    const ssize_t n = write(input_, text.data() + done, text.size() - done);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
      return;  // It reads no more, which may be right.
    } else if (!Pump(/*for_writing=*/true)) {
      return GiveUp("taking its input");
    }
  }
}

void Program::CloseInput() { Close(&input_); }
void Program::CloseOutput() { Close(&out_.fd); }

void Program::Signal(int signal) {
  if (pid_ > 0 && !reaped_) kill(pid_, signal);
}

void Program::WaitForOut(const std::string& text) { WaitFor(&out_, text); }
void Program::WaitForErr(const std::string& text) { WaitFor(&err_, text); }

void Program::WaitFor(Stream* stream, const std::string& text) {
  while (true) {
    const size_t at = stream->text.find(text, stream->seen);
    if (at != std::string::npos) {
      stream->seen = at + text.size();
      return;
    }
    if (stream->fd < 0) return GiveUp("\"" + text + "\", but it left");
    if (!Pump(/*for_writing=*/false)) return GiveUp("\"" + text + "\"");
  }
}

void Program::WaitForFullOut() {
  for (int last = 0, now = 0; now == 0 || now != last;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    last = now;
    if (ioctl(out_.fd, FIONREAD, &now) != 0 || Clock::now() > deadline_) {
      return GiveUp("a full pipe");
    }
  }
}

int Program::Wait() {
  // A terminal has no end of its own; Ctrl-D or /quit is typed.
  CloseInput();
  while (!reaped_ && pid_ > 0) {
    const pid_t done = waitpid(pid_, &status_, WNOHANG);
    if (done == pid_) {
      reaped_ = true;
    } else if (!Pump(/*for_writing=*/false)) {
      GiveUp("its end");
    }
  }
  Drain(&out_);
  Drain(&err_);
  return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
}

bool Program::Pump(bool for_writing) {
  pollfd fds[3] = {{out_.fd, POLLIN, 0},
                   {err_.fd, POLLIN, 0},
                   {for_writing ? input_ : -1, POLLOUT, 0}};
  poll(fds, 3, /*milliseconds*/ 20);
  Drain(&out_);
  Drain(&err_);
  return Clock::now() < deadline_;
}

void Program::Drain(Stream* stream) {
  char buffer[1 << 14];
  // Bounded: some programs here never stop.
  for (int i = 0; i < 64 && stream->fd >= 0; ++i) {
    const ssize_t n = read(stream->fd, buffer, sizeof(buffer));
    if (n > 0) {
      stream->text.append(buffer, static_cast<size_t>(n));
    } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      return;
    } else {
      Close(&stream->fd);  // A terminal that nobody holds gives EIO.
    }
  }
}

void Program::GiveUp(const std::string& what) {
  const auto end = [](const std::string& text) {
    return text.substr(text.size() - std::min<size_t>(text.size(), 2000));
  };
  ADD_FAILURE() << "waited for " << what << "\nout: " << end(out_.text)
                << "\nerr: " << end(err_.text);
  Signal(SIGKILL);
  if (!reaped_ && pid_ > 0) waitpid(pid_, &status_, 0);
  reaped_ = true;
}

Outcome RunToEnd(const Launch& launch, const std::string& input) {
  Program program(launch);
  program.Write(input);
  Outcome outcome;
  outcome.status = program.Wait();
  outcome.out = program.out();
  outcome.err = program.err();
  return outcome;
}

}  // namespace deltaedge::testing
