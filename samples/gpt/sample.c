// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/sample.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "samples/gpt/random.h"

// A temperature below 1 makes likely bytes likelier. A small model needs that
// to spell.
static const double kTemperature = 0.8;

// The random stream of samples. Neither weights nor batches use it.
static const uint64_t kStream = UINT64_C(1) << 41;

// Draws a byte from p^(1 / temperature), normalized. `uniform` is in [0, 1).
static uint8_t draw(const real* probabilities, double uniform) {
  double weights[GPT_VOCABULARY];
  double total = 0;
  for (int v = 0; v < GPT_VOCABULARY; v++) {
    weights[v] = pow((double)probabilities[v], 1 / kTemperature);
    total += weights[v];
  }
  double left = uniform * total;
  int choice = 0;
  for (int v = 0; v < GPT_VOCABULARY && left >= 0; v++) {
    if (weights[v] > 0) choice = v;
    left -= weights[v];
  }
  return (uint8_t)choice;
}

bool sample_text(gpt* model, const gpt_config* config, uint64_t seed, int bytes,
                 uint8_t* window, uint8_t* out) {
  const size_t context = (size_t)config->context;
  window[0] = '\n';
  size_t length = 1;
  for (int i = 0; i < bytes; i++) {
    // Not used: the byte at the place of the target is not from the text.
    double nats;
    if (!gpt_forward(model, window, 1, (int)length, &nats)) return false;
    const real* probabilities = gpt_probabilities(model, (int)length - 1);
    if (!probabilities) return false;
    out[i] = draw(probabilities, random_uniform(seed, kStream, (uint64_t)i));
    if (length == context) {
      memmove(window, window + 1, context - 1);
      length--;
    }
    window[length++] = out[i];
  }
  return true;
}

bool sample_attend(gpt* model, int bytes) {
  for (int i = 0; i < bytes; i++) {
    double nats;
    if (!gpt_forward(model, NULL, 0, 1, &nats)) return false;
  }
  return true;
}

void sample_print(const uint8_t* sample, int bytes) {
  if (bytes == 0) return;
  printf("\n");
  for (int i = 0; i < bytes; i++) {
    // Replaces bytes that a terminal would take for commands.
    const uint8_t byte = sample[i];
    putchar(byte == '\n' || (byte >= ' ' && byte < 127) ? byte : '?');
  }
  printf("\n\n");
}
