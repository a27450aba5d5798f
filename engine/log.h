// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_LOG_H_
#define DELTAEDGE_ENGINE_LOG_H_

// SetLogSink(): where the library's few messages go. Nowhere by default; it
// never writes to stdout or stderr itself.
#include "engine/base/log.h"  // IWYU pragma: export

#endif  // DELTAEDGE_ENGINE_LOG_H_
