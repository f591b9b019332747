// examples/pretrain_gpt/host_list.h
//
// Slurm's compressed lists of host names.
#pragma once

#include <string>
#include <string_view>

namespace pretrain_gpt {

// The first host: "linux[1,2]" gives linux1, "n[008-010]" n008, "alpha,beta" alpha, "rack[1-2]n[07-09]" rack1n07.
// Throws UserError where a bracket is not closed, or closes none, or there is no name.
std::string first_host(std::string_view list);

}  // namespace pretrain_gpt
