// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_BASE_STATUS_MACROS_H_
#define DELTAEDGE_ENGINE_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/base/optimization.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function if `expr`, an absl::Status, is an error.
#define DELTAEDGE_RETURN_IF_ERROR(expr)                \
  do {                                                 \
    ::absl::Status deltaedge_status_ = (expr);         \
    if (ABSL_PREDICT_FALSE(!deltaedge_status_.ok())) { \
      return deltaedge_status_;                        \
    }                                                  \
  } while (false)

// Evaluates `expr`, an absl::StatusOr<T>; returns its error from the enclosing
// function, or assigns its value to `lhs`, which may declare a variable. `lhs`
// must not contain a comma outside parentheses.
#define DELTAEDGE_ASSIGN_OR_RETURN(lhs, expr)                                  \
  DELTAEDGE_ASSIGN_OR_RETURN_IMPL_(DELTAEDGE_CONCAT_(deltaedge_or_, __LINE__), \
                                   lhs, expr)

#define DELTAEDGE_ASSIGN_OR_RETURN_IMPL_(or_value, lhs, expr) \
  auto or_value = (expr);                                     \
  if (ABSL_PREDICT_FALSE(!or_value.ok())) {                   \
    return std::move(or_value).status();                      \
  }                                                           \
  lhs = *std::move(or_value)

#define DELTAEDGE_CONCAT_INNER_(a, b) a##b
#define DELTAEDGE_CONCAT_(a, b) DELTAEDGE_CONCAT_INNER_(a, b)

#endif  // DELTAEDGE_ENGINE_BASE_STATUS_MACROS_H_
