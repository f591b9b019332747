// plugin/search/check_request.h
//
// What is wrong with a request in itself.
#pragma once

#include "plugin/search/choose_schedule.h"

namespace dualpipe::search {

// Throws ScheduleError.
void check_request(const AutoRequest& request);

// The number of stages that the request's costs and max_activations are in.
int cost_stages(const AutoRequest& request);

}  // namespace dualpipe::search
