"""The client over the Vibe strand. It knows no other strand; what they share is in `client`.

It is imported when it is first used: JSON validation and brotli need libraries that programs on
other strands should not have to load.
"""
