// SPDX-License-Identifier: Apache-2.0
// The main() of the flatc that this build uses: the schema compiler with the
// C++ generator, and with binary and JSON output. The twelve generators for
// other languages would be half of its compile time.

#include <cstdio>
#include <cstdlib>
#include <string>

#include "flatbuffers/code_generator.h"
#include "flatbuffers/flatc.h"
#include "flatbuffers/idl.h"
#include "src/idl_gen_binary.h"
#include "src/idl_gen_cpp.h"
#include "src/idl_gen_text.h"

namespace {

void Warn(const flatbuffers::FlatCompiler*, const std::string& text, bool) {
  std::fprintf(stderr, "flatc: warning: %s\n", text.c_str());
}

void Error(const flatbuffers::FlatCompiler*, const std::string& text, bool,
           bool) {
  std::fprintf(stderr, "flatc: error: %s\n", text.c_str());
  std::exit(1);
}

}  // namespace

namespace flatbuffers {

// Declared by flatc, defined by its main.
void LogCompilerWarn(const std::string& text) { Warn(nullptr, text, true); }
void LogCompilerError(const std::string& text) {
  Error(nullptr, text, false, true);
}

// The C++ generator refers to it; it reports failure because it is not here.
bool GenerateCppGRPC(const Parser&, const std::string&, const std::string&) {
  return false;
}

}  // namespace flatbuffers

int main(int argc, const char* argv[]) {
  flatbuffers::FlatCompiler::InitParams params;
  params.warn_fn = Warn;
  params.error_fn = Error;
  flatbuffers::FlatCompiler flatc(params);
  flatc.RegisterCodeGenerator({"b", "binary", "", "Binary from JSON"},
                              flatbuffers::NewBinaryCodeGenerator());
  flatc.RegisterCodeGenerator({"c", "cpp", "", "C++ header"},
                              flatbuffers::NewCppCodeGenerator());
  flatc.RegisterCodeGenerator({"t", "json", "", "JSON from binary"},
                              flatbuffers::NewTextCodeGenerator());
  return flatc.Compile(flatc.ParseFromCommandLineArguments(argc, argv));
}
