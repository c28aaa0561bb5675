#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "bench/driver/command.h"
#include "bench/predict/command.h"
#include "tools/doctor/doctor.h"
#include "tools/gradrail/checkpoint_command.h"
#include "tools/gradrail/convert.h"
#include "tools/gradrail/topo.h"
#include "tools/monitor/top.h"
#include "tools/train/run_command.h"
#include "tools/train/train_options.h"

namespace gradrail::tools {

/// The commands of the program and the values of their flags. `app.parse()` fills them in, or throws a CLI::ParseError.
struct CommandLine {
  CommandLine();
  CommandLine(const CommandLine&) = delete;  // the parser has pointers into this object
  CommandLine& operator=(const CommandLine&) = delete;

  CLI::App app{"gradient exchange with a sharded parameter server", "gradrail"};
  TrainOptions train;
  TrainOptions run;
  DoctorFlags doctor;
  std::string plugin_dir;  ///< folder of `info` and `doctor`
  TopoFlags topo;
  TopFlags top;
  ConvertFlags convert;
  CheckpointFlags checkpoint;
  bench::BenchFlags bench;
  bench::predict::PredictFlags predict;
};

/// Returns one line for an error of the parser, whatever the arguments contain.
std::string usage_line(const CLI::App* program, const CLI::Error& error);

}  // namespace gradrail::tools
