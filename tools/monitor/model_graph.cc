#include "tools/monitor/model_graph.h"

#include <cmath>
#include <utility>

#include "base/check.h"

namespace gradrail::tools {
namespace {

using Nodes = std::vector<worker::GraphNode>;

constexpr char kImages[] = "images";
constexpr char kLabels[] = "labels";

/// Adds a node and returns its name, the input of the next one.
std::string add(Nodes& nodes, std::string name, std::string op, std::vector<std::string> inputs) {
  nodes.push_back({.name = std::move(name), .op = std::move(op), .inputs = std::move(inputs), .shape = {}});
  return nodes.back().name;
}

void add_placeholder(Nodes& nodes, std::string name, std::vector<int64_t> shape) {
  nodes.push_back({.name = std::move(name), .op = "Placeholder", .inputs = {}, .shape = std::move(shape)});
}

void add_variables(Nodes& nodes, const Schema& schema) {
  for (const Tensor& tensor : schema)
    nodes.push_back({.name = tensor.name, .op = "VariableV2", .inputs = {}, .shape = tensor.shape});
}

/// A fully connected layer; `activation`: an operation, or "" for none.
std::string add_dense(Nodes& nodes, const std::string& name, const std::string& input, const std::string& weights,
                      const std::string& bias, const std::string& activation) {
  const std::string product = add(nodes, name + "/MatMul", "MatMul", {input, weights});
  const std::string sum = add(nodes, name + "/add", "AddV2", {product, bias});
  return activation.empty() ? sum : add(nodes, name + "/" + activation, activation, {sum});
}

/// Convolution and pooling; the variables have the name of the layer.
std::string add_convolution(Nodes& nodes, const std::string& number, const std::string& input) {
  const std::string name = "conv" + number;
  const std::string convolved = add(nodes, name + "/Conv2D", "Conv2D", {input, name + "/weights"});
  const std::string sum = add(nodes, name + "/BiasAdd", "BiasAdd", {convolved, name + "/biases"});
  const std::string units = add(nodes, name + "/Relu", "Relu", {sum});
  return add(nodes, "pool" + number, "MaxPool", {units});
}

void add_cost(Nodes& nodes, const std::string& logits) {
  const std::string each = add(nodes, "cost/xentropy", "SparseSoftmaxCrossEntropyWithLogits", {logits, kLabels});
  add(nodes, "cost/Mean", "Mean", {each});
}

void add_mlp(Nodes& nodes) {
  const std::string hidden = add_dense(nodes, "hidden", kImages, "W1", "b1", "Sigmoid");
  add_cost(nodes, add_dense(nodes, "logits", hidden, "W2", "b2", ""));
}

void add_cnn(Nodes& nodes, bool has_logits_relu) {
  const auto dense = [&](const std::string& name, const std::string& input, const std::string& activation) {
    return add_dense(nodes, name, input, name + "/weights", name + "/biases", activation);
  };
  const std::string pooled = add_convolution(nodes, "2", add_convolution(nodes, "1", kImages));
  const std::string features = add(nodes, "local3/Reshape", "Reshape", {pooled});
  const std::string units = dense("local4", dense("local3", features, "Relu"), "Relu");
  add_cost(nodes, dense("softmax_linear", units, has_logits_relu ? "Relu" : ""));
}

void add_linear(Nodes& nodes) {
  const std::string product = add(nodes, "line/Mul", "Mul", {"x", "w"});
  const std::string sum = add(nodes, "line/add", "AddV2", {product, "b"});
  const std::string error = add(nodes, "cost/SquaredDifference", "SquaredDifference", {sum, "y"});
  add(nodes, "cost/Mean", "Mean", {error});
}

/// The side of the images of cnn: two poolings halve it twice, and local3 reads all channels.
int64_t image_side(const Schema& schema) {
  int64_t channels = 0, features = 0;
  for (const Tensor& tensor : schema) {
    if (tensor.name == "conv2/biases") channels = tensor.shape[0];
    if (tensor.name == "local3/weights") features = tensor.shape[0];
  }
  GRADRAIL_CHECK(channels > 0 && features > 0);
  return 4 * std::lround(std::sqrt(static_cast<double>(features / channels)));
}

}  // namespace

std::vector<worker::GraphNode> model_graph(const std::string& model, const Schema& schema, size_t batch_size,
                                           bool cnn_logits_relu) {
  Nodes nodes;
  const auto batch = static_cast<int64_t>(batch_size);
  if (model == "linear") {
    add_placeholder(nodes, "x", {batch});
    add_placeholder(nodes, "y", {batch});
  } else if (model == "cnn") {
    const int64_t side = image_side(schema);
    add_placeholder(nodes, kImages, {batch, side, side, 1});
  } else {
    GRADRAIL_CHECK(!schema.empty() && schema[0].name == "W1");
    add_placeholder(nodes, kImages, {batch, schema[0].shape[0]});
  }
  if (model != "linear") add_placeholder(nodes, kLabels, {batch});
  add_variables(nodes, schema);
  if (model == "linear") {
    add_linear(nodes);
  } else if (model == "cnn") {
    add_cnn(nodes, cnn_logits_relu);
  } else {
    add_mlp(nodes);
  }
  return nodes;
}

}  // namespace gradrail::tools
