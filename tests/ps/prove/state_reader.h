#pragma once

#include "tests/ps/prove/bytes.h"

namespace gradrail::ps {

class AnswerGate;
class BackupProgress;
class Membership;
class ShardProtocol;
struct BucketState;

/// Writes the whole state of the shipped classes. Two states that it writes alike behave alike. The functions name all
/// fields of a class at once, so that a new field does not compile until it is written here.
/// The part of a worker is written apart from the rest, because workers are interchangeable.
class StateReader {
 public:
  static void write_worker(const ShardProtocol& protocol, uint32_t worker, prove::Bytes& bytes);
  static void write_shared(const ShardProtocol& protocol, prove::Bytes& bytes);
  static void write_worker(const AnswerGate& gate, uint32_t worker, prove::Bytes& bytes);
  static void write_shared(const AnswerGate& gate, prove::Bytes& bytes);
  static void write_worker(const Membership& membership, uint32_t worker, prove::Bytes& bytes);
  static void write(const BackupProgress& progress, prove::Bytes& bytes);
  static void write_worker(const BucketState& state, uint32_t worker, prove::Bytes& bytes);
};

}  // namespace gradrail::ps
