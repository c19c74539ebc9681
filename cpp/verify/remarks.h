// A difference with a known shape, in plain words.
#pragma once

#include <nlohmann/json.hpp>

#include "verify/local_check.h"

namespace lockstep {

/// One sentence about the worst bad point of a side, or null.
nlohmann::json remark(const Sublayer& sublayer, const SideResult& side, const Trace& trace, const Judged& worst);

}  // namespace lockstep
