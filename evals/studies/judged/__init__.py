"""A judge in place of developers, for teams with no traffic yet: `tabloop study judged`

places     where the models learn and where they are scored
user       a simulated developer: accepts what the judge scores high enough
recipes    cycles of one recipe: complete, judge, reward, train (GRPO's samples: groups.py)
table      the judge's score of base and trained models side by side
"""
