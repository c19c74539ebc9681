#include <fmt/format.h>

#include "core/error.h"
#include "nn/run.h"

namespace lockstep {

Variant Variant::named(const std::string& name) {
  if (name == "5.10") {
    Variant v{.name = name};
    v.delta_rule_by_rows = v.state_in_run_dtype = v.mask_batches_only = v.gqa_any_head_dim = true;
    v.conv_pads_short_prefill = false;
    return v;
  }
  if (name == "5.18") return Variant{.name = name};
  if (name == "5.24") {
    Variant v{.name = name};
    v.packs_single_query = true;
    return v;
  }
  throw InputError(fmt::format("variant \"{}\" is not known (known: 5.10, 5.18, 5.24)", name));
}

}  // namespace lockstep
