// examples/pretrain_gpt/overrides.h
//
// `--set key=value`: the checks of the file, with "--set key=value" as the origin in messages.
#pragma once

#include <string>

#include "examples/pretrain_gpt/config_reader.h"

namespace pretrain_gpt {

// The value of a key that takes text is taken as it stands, any other is read as YAML ("[2, 2]" is a list).
void read_override(ConfigReader& reader, const std::string& assignment);

}  // namespace pretrain_gpt
