#pragma once

#include <string>
#include <vector>

#include "ps/protocol/schema.h"
#include "worker/summaries/event_file.h"

namespace gradrail::tools {

/// The forward pass of a model of worker/models, for TensorBoard: variables with the names and shapes of `schema`,
/// operations and cost. Each node follows its inputs. `cnn_logits_relu`: the flag, for cnn.
std::vector<worker::GraphNode> model_graph(const std::string& model, const Schema& schema, size_t batch_size,
                                           bool cnn_logits_relu);

}  // namespace gradrail::tools
