// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_JINJA_H_
#define DELTAEDGE_TOOLS_CONVERT_JINJA_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace deltaedge {

// A chat template in the part of Jinja that chat templates use, with the
// settings under which they are written (trim_blocks, lstrip_blocks, the last
// line break dropped):
//
//   statements  for (two targets, if, else), if, set (also of an attribute, and
//               as a block), macro, generation
//   expressions literals, lists, dicts, attributes, subscripts, slices, calls,
//               arithmetic (not / and **), ~, comparisons, in, not, and, or,
//               conditional
//   filters     count, d, default, first, items, join, last, length, list,
//               lower, replace, safe, string, tojson, trim, upper
//   tests       boolean, defined, false, float, integer, iterable, mapping,
//               none, number, sequence, string, true, undefined
//   functions   namespace, raise_exception, range
//   methods     endswith, lower, lstrip, replace, rstrip, split, startswith,
//               strip, upper; get, items, keys, values
//
// It serves to find out what a template does, on inputs of a few lines, so it
// is small rather than fast, and bounded in steps, depth and length of text.
// Anything else is refused by its name when the template is read, in branches
// that would never run too.
//
// Movable. Render may be called from any thread.
class JinjaTemplate {
 public:
  // Unimplemented: names what is not known, and its line.
  // InvalidArgument: not a template, or too large or too deeply nested.
  static absl::StatusOr<JinjaTemplate> Parse(absl::string_view source);

  ~JinjaTemplate();
  JinjaTemplate(JinjaTemplate&&) noexcept;
  JinjaTemplate& operator=(JinjaTemplate&&) noexcept;

  // Aborted: the template called raise_exception; the message is its own.
  // InvalidArgument: an operation that its operands do not have, and the line.
  // ResourceExhausted: beyond the bounds.
  // `variables` must be an object.
  absl::StatusOr<std::string> Render(const nlohmann::json& variables) const;

 private:
  struct Program;
  explicit JinjaTemplate(std::unique_ptr<const Program> program);
  std::unique_ptr<const Program> program_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_JINJA_H_
