"""What an experiment needs besides its data, made by `paper run` in the folder of its runs.

smoke.py        generated data in the forms of the public files, and tiny random models
text_models.py  tokenizers trained on an experiment's own rows, and configurations of models that train from scratch
tokenised.py    parallel texts, tokenised and in small letters as for IWSLT14; headlines as summaries
"""
