"""Object stores behind one interface. S3 uses the standard library; gs and az use a separate process that imports
obstore.
"""
