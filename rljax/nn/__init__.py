"""Network modules (flax.linen) and what makes actions of their outputs, each in the module of its topic:

- `actor_critic`: actor-critics, and the `network` table of a configuration that describes one
- `networks`: feed-forward networks of action values and of policies alone
- `encoders`: dictionaries of vectors and images, sets of entities
- `modules.recurrent`: LSTM, GRU, block-diagonal GRU
- `modules.attention`: multi-head attention, transformer encoder, target attention, attention pooling, pointer network
- `modules.images`: convolutional encoder and decoder
- `modules.layers`: perceptron, RMSNorm, FiLM, activations
- `modules.transforms`: symlog, symexp, two-hot
- `modules.classes`: reductions over actions, masks of logits
- `modules.initializers`: orthogonal, without LAPACK
- `outputs.actions`, `outputs.composite`: from outputs to actions, one record for all policies; heads that see the actions of
  earlier heads
- `latent.rssm`, `latent.vae`, `latent.decoders`: Dreamer's world model, beta-VAE, decoders of observations
"""
