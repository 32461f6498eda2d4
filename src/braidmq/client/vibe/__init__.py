"""The client over the Vibe strand. It knows no other strand; what they share lies above it.

It is imported when it is used: checking JSON and unpacking brotli take libraries that programs
on other strands need not load.
"""
