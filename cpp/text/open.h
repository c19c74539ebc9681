// The tokenizer of a checkpoint folder.
#pragma once

#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace lockstep {

/// tokenizer.json if the folder has one, else tokenizer.model. Raises LoadError for a folder that has neither, and for
/// a file that cannot be used.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& folder);

}  // namespace lockstep
