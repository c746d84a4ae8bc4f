// SPDX-License-Identifier: Apache-2.0
//
// A training loop in the shape of llm.c's train_gpt2.c, with a small residual
// network in place of a GPT. docs/porting.md changes it to train with libshard.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { L = 6, C = 32, B = 12 };  // Layers, channels, examples of a batch.

enum { NUM_TENSORS = 3, NUM_PARAMETERS = L * C * C + L * C + C };
static const size_t sizes[NUM_TENSORS] = {L * C * C, (L * C), C};

typedef struct {
  float* w;     // (L, C, C)
  float* b;     // (L, C)
  float* head;  // (C)
} Tensors;

typedef struct {
  Tensors params, grads;
  float *params_memory, *grads_memory, *m_memory, *v_memory;
  int batch;                // The examples that this process computes.
  float acts[B][L + 1][C];  // The input of each layer; last, the output.
  float targets[B];
} Net;

static float* malloc_and_point(Tensors* tensors) {
  float** ptrs[NUM_TENSORS] = {&tensors->w, &tensors->b, &tensors->head};
  float* memory = calloc(NUM_PARAMETERS, sizeof(float));
  size_t at = 0;
  for (int t = 0; t < NUM_TENSORS; at += sizes[t++]) *ptrs[t] = memory + at;
  return memory;
}

static float noise(int i) {  // In [-0.5, 0.5).
  return (float)(((unsigned)i * 2654435761u + 12345u) >> 8) * 0x1p-24f - 0.5f;
}

static void build(Net* net) {
  net->batch = B;
  net->params_memory = malloc_and_point(&net->params);
  for (int i = 0; i < L * C * C; i++) net->params.w[i] = 0.2f * noise(i);
  for (int i = 0; i < C; i++) net->params.head[i] = 0.2f * noise(i + 77777);
}

static void next_batch(Net* net, int step) {
  for (int e = 0; e < net->batch; e++) {
    const int example = step * B + e;
    float* x = net->acts[e][0];
    for (int c = 0; c < C; c++) x[c] = noise(example * C + c);
    net->targets[e] = x[0] - x[1] + 0.5f * x[2] * x[3];
  }
}

static double forward(Net* net) {  // Returns the mean loss.
  double loss = 0;
  for (int l = 0; l < L; l++) {
    const float *w = net->params.w + l * C * C, *b = net->params.b + l * C;
    for (int e = 0; e < net->batch; e++) {
      const float* x = net->acts[e][l];
      for (int o = 0; o < C; o++) {
        float sum = b[o];
        for (int i = 0; i < C; i++) sum += w[o * C + i] * x[i];
        net->acts[e][l + 1][o] = x[o] + tanhf(sum);
      }
    }
  }
  const float* head = net->params.head;
  for (int e = 0; e < net->batch; e++) {
    float miss = -net->targets[e];
    for (int c = 0; c < C; c++) miss += head[c] * net->acts[e][L][c];
    loss += (double)(miss * miss) / B;
  }
  return loss;
}

static void zero_grad(Net* net) {
  if (net->grads_memory == NULL) return;
  memset(net->grads_memory, 0, NUM_PARAMETERS * sizeof(float));
}

static void backward(Net* net) {
  if (net->grads_memory == NULL) {
    net->grads_memory = malloc_and_point(&net->grads);
  }
  float grad[B][C];  // The gradient of the layer's output.
  const float* head = net->params.head;
  float* dhead = net->grads.head;
  for (int e = 0; e < net->batch; e++) {
    const float* x = net->acts[e][L];
    float miss = -net->targets[e];
    for (int c = 0; c < C; c++) miss += head[c] * x[c];
    for (int c = 0; c < C; c++) {
      dhead[c] += 2 * miss / B * x[c];
      grad[e][c] = 2 * miss / B * head[c];
    }
  }
  for (int l = L - 1; l >= 0; l--) {
    const float* w = net->params.w + l * C * C;
    float *dw = net->grads.w + l * C * C, *db = net->grads.b + l * C;
    for (int e = 0; e < net->batch; e++) {
      const float* x = net->acts[e][l];
      float dx[C];
      memcpy(dx, grad[e], sizeof(dx));
      for (int o = 0; o < C; o++) {
        const float t = net->acts[e][l + 1][o] - x[o];
        const float d = grad[e][o] * (1 - t * t);
        db[o] += d;
        for (int i = 0; i < C; i++) {
          dw[o * C + i] += d * x[i];
          dx[i] += d * w[o * C + i];
        }
      }
      memcpy(grad[e], dx, sizeof(dx));
    }
  }
}

static void update(Net* net, float lr, float beta1, float beta2, float eps,
                   float weight_decay, int t) {
  if (net->m_memory == NULL) {
    net->m_memory = calloc(NUM_PARAMETERS, sizeof(float));
    net->v_memory = calloc(NUM_PARAMETERS, sizeof(float));
  }
  for (int i = 0; i < NUM_PARAMETERS; i++) {
    const float param = net->params_memory[i], grad = net->grads_memory[i];
    const float m = beta1 * net->m_memory[i] + (1 - beta1) * grad;
    const float v = beta2 * net->v_memory[i] + (1 - beta2) * grad * grad;
    const float m_hat = m / (1 - powf(beta1, (float)t));
    const float v_hat = v / (1 - powf(beta2, (float)t));
    net->m_memory[i] = m;
    net->v_memory[i] = v;
    net->params_memory[i] -=
        lr * (m_hat / (sqrtf(v_hat) + eps) + weight_decay * param);
  }
}

int main(void) {
  static Net net;
  build(&net);
  for (int step = 1; step <= 60; step++) {
    next_batch(&net, step);
    const double loss = forward(&net);
    zero_grad(&net);
    backward(&net);
    update(&net, 1e-2f, 0.9f, 0.999f, 1e-8f, 0.0f, step);
    if (step % 20 == 0) printf("step %d: loss %.3f\n", step, loss);
  }
  return 0;
}
