// plugin/search/check_request.h
//
// What is wrong with a request in itself.
#pragma once

#include "plugin/search/choose_schedule.h"

namespace dualpipe::search {

// Throws ScheduleError.
void check_request(const AutoRequest& request);

// The number of stages that the request's costs are of.
int cost_stages(const AutoRequest& request);
// The number of stages of the cut that max_activations counts in.
int activation_stages(const AutoRequest& request);

}  // namespace dualpipe::search
