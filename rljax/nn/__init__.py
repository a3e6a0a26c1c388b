"""Network modules (flax.linen) and what makes actions of their outputs, each in the module of its topic:

- `actor_critic`: actor-critics, and the `network` table of a configuration that describes one
- `networks`: feed-forward networks of action values and of policies alone
- `recurrent`: LSTM, GRU, block-diagonal GRU
- `attention`: multi-head attention, transformer encoder, target attention, attention pooling, pointer network
- `encoders`: dictionaries of vectors and images, sets of entities
- `images`: convolutional encoder and decoder
- `layers`: perceptron, RMSNorm, FiLM, activations
- `transforms`: symlog, symexp, two-hot
- `vae`: beta-VAE
- `actions`, `composite`: from outputs to actions, one record for all policies; heads that see the actions of earlier heads
- `initializers`: orthogonal, without LAPACK
"""
