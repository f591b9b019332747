// plugin/runtime/dtype_name.h
//
// A dtype as users write it.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

namespace dualpipe {

std::string dtype_name(at::ScalarType type);  // "float32", "int64", "bool", ...

}  // namespace dualpipe
